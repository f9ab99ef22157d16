#define _GNU_SOURCE
#include "vt_saved.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

int (*vt_vstop)(struct ibv_context *, const struct vervain_stop_attr *);
int (*vt_vgo)(struct ibv_context *);
int (*vt_vsave)(struct ibv_context *, int, const struct vervain_save_attr *);
int (*vt_vrestore)(struct ibv_context *, int, const struct vervain_restore_attr *);

void vt_saved_find(void)
{
	*(void **)&vt_vstop = dlsym(RTLD_DEFAULT, "vervain_stop");
	*(void **)&vt_vgo = dlsym(RTLD_DEFAULT, "vervain_go");
	*(void **)&vt_vsave = dlsym(RTLD_DEFAULT, "vervain_save");
	*(void **)&vt_vrestore = dlsym(RTLD_DEFAULT, "vervain_restore");
	vt_require(vt_vstop && vt_vgo && vt_vsave && vt_vrestore, "the library cannot save: %s", dlerror());
}

static uint32_t handle_of(uint32_t kind, void *o)
{
	switch (kind) {
	case VERVAIN_PD: return ((struct ibv_pd *)o)->handle;
	case VERVAIN_DM: return ((struct ibv_dm *)o)->handle;
	case VERVAIN_MR: return ((struct ibv_mr *)o)->handle;
	case VERVAIN_MW: return ((struct ibv_mw *)o)->handle;
	case VERVAIN_COMP_CHANNEL: return (uint32_t)((struct ibv_comp_channel *)o)->fd;
	case VERVAIN_CQ: return ((struct ibv_cq *)o)->handle;
	case VERVAIN_SRQ: return ((struct ibv_srq *)o)->handle;
	case VERVAIN_QP: return ((struct ibv_qp *)o)->handle;
	default: return 0;
	}
}

static uint32_t number_of(uint32_t kind, void *o)
{
	uint32_t n = 0;
	switch (kind) {
	case VERVAIN_MR:
		vt_check(((struct ibv_mr *)o)->lkey == ((struct ibv_mr *)o)->rkey, "two keys");
		return ((struct ibv_mr *)o)->lkey;
	case VERVAIN_MW: return ((struct ibv_mw *)o)->rkey;
	case VERVAIN_SRQ: return ibv_get_srq_num(o, &n) ? 0 : n;
	case VERVAIN_QP: return ((struct ibv_qp *)o)->qp_num;
	default: return 0;
	}
}

static uint64_t user_context_of(uint32_t kind, void *o)
{
	switch (kind) {
	case VERVAIN_CQ: return (uintptr_t)((struct ibv_cq *)o)->cq_context;
	case VERVAIN_SRQ: return (uintptr_t)((struct ibv_srq *)o)->srq_context;
	case VERVAIN_QP: return (uintptr_t)((struct ibv_qp *)o)->qp_context;
	default: return 0;
	}
}

void vt_keep(struct vt_things *t, uint32_t kind, void **at)
{
	vt_require(*at, "an object of kind %u was not made: %s", kind, vt_errno_name(errno));
	vt_require(t->n < VT_THINGS, "too many objects");
	struct vt_thing *x = &t->all[t->n++];
	*x = (struct vt_thing){ .kind = kind, .handle = handle_of(kind, *at), .at = at };
	x->user_context = user_context_of(kind, *at);
}

/* What queries tell that is no pointer. */
static void query(const struct vt_thing *x, uint64_t told[VT_TOLD])
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	struct ibv_srq_attr s;
	memset(told, 0, VT_TOLD * sizeof(*told));
	if (x->kind == VERVAIN_QP) {
		vt_check(ibv_query_qp(*x->at, &a, ~0, &i) == 0, "querying QP %#x", x->number);
		const struct ibv_global_route *g = &a.ah_attr.grh;
		const uint64_t all[] = { a.qp_state, a.cur_qp_state, a.path_mtu, a.path_mig_state, a.qkey, a.rq_psn, a.sq_psn, a.dest_qp_num,
			a.qp_access_flags, a.cap.max_send_wr, a.cap.max_recv_wr, a.cap.max_send_sge, a.cap.max_recv_sge, a.cap.max_inline_data,
			g->dgid.global.subnet_prefix, g->dgid.global.interface_id, g->flow_label, g->sgid_index, g->hop_limit, g->traffic_class,
			a.ah_attr.dlid, a.ah_attr.sl, a.ah_attr.src_path_bits, a.ah_attr.static_rate, a.ah_attr.is_global, a.ah_attr.port_num,
			a.pkey_index, a.en_sqd_async_notify, a.sq_draining, a.max_rd_atomic, a.max_dest_rd_atomic, a.min_rnr_timer, a.port_num,
			a.timeout, a.retry_cnt, a.rnr_retry, (uintptr_t)i.qp_context, i.cap.max_send_wr, i.cap.max_recv_wr, i.cap.max_send_sge,
			i.cap.max_recv_sge, i.cap.max_inline_data, i.qp_type, (uint64_t)i.sq_sig_all };
		_Static_assert(VT_ARRAY(all) <= VT_TOLD, "room");
		memcpy(told, all, sizeof(all));
	}
	if (x->kind == VERVAIN_SRQ) {
		vt_check(ibv_query_srq(*x->at, &s) == 0, "querying an SRQ");
		told[0] = s.max_wr;
		told[1] = s.max_sge;
		told[2] = s.srq_limit;
	}
}

void vt_note_all(struct vt_things *t)
{
	for (unsigned i = 0; i < t->n; i++) {
		struct vt_thing *x = &t->all[i];
		x->number = number_of(x->kind, *x->at);
		x->calls = 0;
		query(x, x->told);
	}
}

void vt_compare_all(struct vt_things *t)
{
	for (unsigned i = 0; i < t->n; i++) {
		struct vt_thing *x = &t->all[i];
		uint64_t told[VT_TOLD];
		query(x, told);
		vt_check(number_of(x->kind, *x->at) == x->number, "kind %u: number %#x for %#x", x->kind, number_of(x->kind, *x->at), x->number);
		vt_check(user_context_of(x->kind, *x->at) == x->user_context, "kind %u: another user context", x->kind);
		for (unsigned k = 0; k < VT_TOLD; k++)
			vt_check(told[k] == x->told[k], "kind %u, %#x: a query tells %#" PRIx64 " for %#" PRIx64 " in place %u", x->kind, x->number, told[k],
				 x->told[k], k);
	}
}

static int destroy(const struct vt_thing *x)
{
	switch (x->kind) {
	case VERVAIN_PD: return ibv_dealloc_pd(*x->at);
	case VERVAIN_DM: return ibv_free_dm(*x->at);
	case VERVAIN_MR: return ibv_dereg_mr(*x->at);
	case VERVAIN_MW: return ibv_dealloc_mw(*x->at);
	case VERVAIN_COMP_CHANNEL: return ibv_destroy_comp_channel(*x->at);
	case VERVAIN_CQ: return ibv_destroy_cq(*x->at);
	case VERVAIN_XRCD: return ibv_close_xrcd(*x->at);
	case VERVAIN_SRQ: return ibv_destroy_srq(*x->at);
	default: return ibv_destroy_qp(*x->at);
	}
}

void vt_destroy_all(struct vt_things *t)
{
	for (unsigned i = t->n; i-- > 0;) {
		int rc = destroy(&t->all[i]);
		vt_check(rc == 0, "destroying an object of kind %u: %s", t->all[i].kind, vt_errno_name(rc));
		*t->all[i].at = NULL;
	}
}

void vt_found_again(void *user, const struct vervain_object *o)
{
	struct vt_things *t = user;
	vt_check(o->kind >= t->last_kind && !o->reserved && o->object, "kind %u after kind %u", o->kind, t->last_kind);
	if (o->kind != t->last_kind)
		t->last = -1;
	t->last_kind = o->kind;
	for (int i = t->last + 1; i < (int)t->n; i++) {
		struct vt_thing *x = &t->all[i];
		/* XRC domains have no handle. */
		if (x->kind != o->kind || x->handle != o->handle)
			continue;
		vt_check(x->calls++ == 0, "kind %u, handle %u: named twice", o->kind, o->handle);
		vt_check(x->number == o->number, "kind %u: number %#x for %#x", o->kind, o->number, x->number);
		vt_check(x->user_context == o->user_context, "kind %u: user context", o->kind);
		*x->at = o->object;
		t->last = i;
		return;
	}
	vt_check(false, "kind %u, handle %u: out of order, or there was none", o->kind, o->handle);
}

int vt_restore_all(struct vt_things *t, struct ibv_context *ctx, int fd)
{
	struct vervain_restore_attr attr = { .user = t, .restored = vt_found_again };
	t->last_kind = 0;
	t->last = -1;
	int rc = vt_vrestore(ctx, fd, &attr);
	for (unsigned i = 0; i < t->n; i++) {
		vt_check(t->all[i].calls == (rc == 0), "kind %u: named %u times", t->all[i].kind, t->all[i].calls);
		if (rc == 0)
			t->all[i].handle = handle_of(t->all[i].kind, *t->all[i].at);
	}
	return rc;
}

int vt_image(void)
{
	int fd = memfd_create("image", MFD_CLOEXEC);
	vt_require(fd >= 0, "a memfd: %s", strerror(errno));
	return fd;
}

void vt_rewind(int fd)
{
	vt_check(lseek(fd, 0, SEEK_SET) == 0, "rewinding");
}
