// A libibverbs with one device, for tests of the command alone: the eight calls that it makes, with <infiniband/verbs.h>
// giving the layouts. FAKE_VERBS=hang, =fail and =refuse make it misbehave; VERVAIN_DEVICES=2 gives a second device.
#include <errno.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ibv_device devices[2];
static struct ibv_device *list[3];
static struct ibv_context contexts[2];

struct ibv_device **fake_list(int *count) __asm__("ibv_get_device_list");
struct ibv_device **fake_list(int *count)
{
	const char *mode = getenv("FAKE_VERBS"), *n = getenv("VERVAIN_DEVICES"), *log = getenv("VERVAIN_LOG");
	if (mode && !strcmp(mode, "hang"))
		pause();
	if (mode && !strcmp(mode, "fail")) {
		errno = ENOSYS;
		return NULL;
	}
	// As the library does at a wrong variable, unless it is told to be silent.
	if (mode && !strcmp(mode, "refuse")) {
		if (log && strcmp(log, "off"))
			fputs("vervain: [ERROR vervain] no device: VERVAIN_INTERFACE is 'x'; it can be some of lo\n", stderr);
		errno = EINVAL;
		return NULL;
	}
	*count = n ? atoi(n) : 1;
	for (int i = 0; i < *count && i < 2; i++) {
		devices[i].node_type = IBV_NODE_CA;
		strcpy(devices[i].name, i ? "vervain1" : "vervain0");
		strcpy(devices[i].dev_name, i ? "uverbs1" : "uverbs0");
		list[i] = &devices[i];
	}
	return list;
}

void fake_free(struct ibv_device **l) __asm__("ibv_free_device_list");
void fake_free(struct ibv_device **l)
{
	(void)l;
}

struct ibv_context *fake_open(struct ibv_device *d) __asm__("ibv_open_device");
struct ibv_context *fake_open(struct ibv_device *d)
{
	return &contexts[d - devices];
}

int fake_close(struct ibv_context *c) __asm__("ibv_close_device");
int fake_close(struct ibv_context *c)
{
	(void)c;
	return 0;
}

int fake_device(struct ibv_context *c, struct ibv_device_attr *a) __asm__("ibv_query_device");
int fake_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	(void)c;
	memset(a, 0, sizeof(*a));
	strcpy(a->fw_ver, "1.2.3");
	memcpy(&a->node_guid, "\x02\x11\x22\x33\x44\x55\x66\x77", 8);
	a->sys_image_guid = a->node_guid;
	a->phys_port_cnt = 1;
	return 0;
}

int fake_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a) __asm__("ibv_query_port");
int fake_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a)
{
	(void)c;
	if (port != 1)
		return EINVAL;
	// The exported function has 48 bytes to fill.
	memset(a, 0, 48);
	a->state = IBV_PORT_ACTIVE;
	a->max_mtu = a->active_mtu = IBV_MTU_4096;
	a->gid_tbl_len = 4;
	a->pkey_tbl_len = 1;
	a->active_width = 2;
	a->active_speed = 32;
	a->phys_state = 5;
	a->link_layer = IBV_LINK_LAYER_ETHERNET;
	return 0;
}

int fake_pkey(struct ibv_context *c, uint8_t port, int i, __be16 *pkey) __asm__("ibv_query_pkey");
int fake_pkey(struct ibv_context *c, uint8_t port, int i, __be16 *pkey)
{
	(void)c, (void)port, (void)i;
	*pkey = 0xffff;
	return 0;
}

ssize_t fake_gids(struct ibv_context *c, struct ibv_gid_entry *e, size_t max, uint32_t flags, size_t size)
	__asm__("_ibv_query_gid_table");
ssize_t fake_gids(struct ibv_context *c, struct ibv_gid_entry *e, size_t max, uint32_t flags, size_t size)
{
	(void)c;
	if (flags || size != sizeof(*e) || max < 1)
		return -EINVAL;
	memset(e, 0, sizeof(*e));
	memcpy(e->gid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\1", 16);
	e->gid_index = 1;
	e->port_num = 1;
	e->gid_type = IBV_GID_TYPE_ROCE_V2;
	e->ndev_ifindex = if_nametoindex("lo");
	return 1;
}

// What `vervain-rdma` looks up as well, and the command never calls.
#define NEVER_CALLED(name) \
	void never_##name(void) __asm__("ibv_" #name); \
	void never_##name(void) { abort(); }

NEVER_CALLED(alloc_pd)
NEVER_CALLED(dealloc_pd)
NEVER_CALLED(reg_mr)
NEVER_CALLED(reg_mr_iova2)
NEVER_CALLED(dereg_mr)
NEVER_CALLED(create_comp_channel)
NEVER_CALLED(destroy_comp_channel)
NEVER_CALLED(create_cq)
NEVER_CALLED(destroy_cq)
NEVER_CALLED(get_cq_event)
NEVER_CALLED(ack_cq_events)
NEVER_CALLED(create_srq)
NEVER_CALLED(modify_srq)
NEVER_CALLED(query_srq)
NEVER_CALLED(destroy_srq)
NEVER_CALLED(create_qp)
NEVER_CALLED(modify_qp)
NEVER_CALLED(query_qp)
NEVER_CALLED(destroy_qp)
NEVER_CALLED(create_ah)
NEVER_CALLED(init_ah_from_wc)
NEVER_CALLED(destroy_ah)
NEVER_CALLED(get_async_event)
NEVER_CALLED(ack_async_event)
