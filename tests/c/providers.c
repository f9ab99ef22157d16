/* Programs that link vendors' provider libraries beside libibverbs, as perftest links libhns: they load, and each call says
 * what rdma-core's library says of a device that is not its own, or no. A query of optional capabilities succeeds and has
 * none, as of a card without them. Declared here, for Debian 12 has not all of the headers. */
#include "vt.h"

struct hnsdv_context {
	uint64_t comp_mask, flags;
	uint8_t congest_type, reserved[7];
};
bool hnsdv_is_supported(struct ibv_device *device);
int hnsdv_query_device(struct ibv_context *context, struct hnsdv_context *attrs);
struct ibv_qp *hnsdv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr, void *hns_attr);

struct mlx5dv_context_start {
	uint8_t version;
	uint64_t flags, comp_mask;
	uint8_t later[200];
};
bool mlx5dv_is_supported(struct ibv_device *device);
int mlx5dv_query_device(struct ibv_context *context, void *attrs);
struct ibv_context *mlx5dv_open_device(struct ibv_device *device, void *attr);

struct efadv_device_attr_start {
	uint64_t comp_mask;
	uint32_t max_sq_wr, max_rq_wr;
	uint8_t later[200];
};
int efadv_query_device(struct ibv_context *context, void *attr, uint32_t inlen);

struct mlx4dv_context {
	uint8_t version;
	uint32_t max_inl_recv_sz;
	uint64_t comp_mask;
};
int mlx4dv_init_obj(void *obj, uint64_t type);
int mlx4dv_query_device(struct ibv_context *context, void *attrs);
int mlx4dv_set_context_attr(struct ibv_context *context, int type, void *attr);
struct ibv_qp *mlx4dv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr, void *mlx4_attr);

int manadv_set_context_attr(struct ibv_context *context, int type, void *attr);
int manadv_init_obj(void *obj, uint64_t type);

uint8_t ionic_dv_ctx_get_udma_count(struct ibv_context *context);
uint8_t ionic_dv_ctx_get_udma_mask(struct ibv_context *context);
uint8_t ionic_dv_pd_get_udma_mask(struct ibv_pd *pd);
int ionic_dv_pd_set_udma_mask(struct ibv_pd *pd, uint8_t mask);
int ionic_dv_pd_set_sqcmb(struct ibv_pd *pd, bool enable, bool expdb, bool require);
int ionic_dv_pd_set_rqcmb(struct ibv_pd *pd, bool enable, bool expdb, bool require);

static struct vt_dev dev;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void open_device(void)
{
	vt_require(vt_open(&dev), "no device");
	pd = ibv_alloc_pd(dev.ctx);
	cq = ibv_create_cq(dev.ctx, 4, NULL, NULL, 0);
	vt_require(pd && cq, "no PD or CQ");
}

/* What ibv_create_qp_ex would take. */
static struct ibv_qp_init_attr_ex good(void)
{
	return (struct ibv_qp_init_attr_ex){ .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC,
					     .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd };
}

static void refused(const char *call, int answer, int want)
{
	vt_check(answer == want, "%s: %s, not %s", call, vt_errno_name(answer), vt_errno_name(want));
}

static void no_object(const char *call, const void *object)
{
	vt_check(!object && errno == EOPNOTSUPP, "%s: %p, errno %s", call, object, vt_errno_name(errno));
	errno = 0;
}

static void hns(void)
{
	open_device();
	struct ibv_qp_init_attr_ex attr = good();
	struct hnsdv_context context;
	memset(&context, 0xff, sizeof(context));
	struct {
		uint64_t comp_mask;
		uint32_t create_flags;
		uint8_t congest_type, reserved[3];
	} hns_attr = { 0 };
	vt_check(!hnsdv_is_supported(dev.ctx->device), "hnsdv_is_supported: true");
	refused("hnsdv_query_device", hnsdv_query_device(dev.ctx, &context), 0);
	vt_check(!context.comp_mask && !context.flags && !context.congest_type, "hns: mask 0x%llx, flags 0x%llx, congestion control %u",
		 (unsigned long long)context.comp_mask, (unsigned long long)context.flags, context.congest_type);
	no_object("hnsdv_create_qp", hnsdv_create_qp(dev.ctx, &attr, &hns_attr));
}

static void mlx5(void)
{
	open_device();
	struct mlx5dv_context_start context;
	memset(&context, 0xff, sizeof(context));
	vt_check(!mlx5dv_is_supported(dev.ctx->device), "mlx5dv_is_supported: true");
	refused("mlx5dv_query_device", mlx5dv_query_device(dev.ctx, &context), 0);
	vt_check(!context.version && !context.flags && !context.comp_mask, "mlx5: version %u, flags 0x%llx, mask 0x%llx",
		 context.version, (unsigned long long)context.flags, (unsigned long long)context.comp_mask);
	for (size_t i = 0; i < sizeof(context.later); i++)
		vt_require(context.later[i] == 0xff, "byte %zu behind the mask was written", i);
	no_object("mlx5dv_open_device", mlx5dv_open_device(dev.ctx->device, &context));
}

/* It tells limits, and none of 0 is one. */
static void efa(void)
{
	open_device();
	struct efadv_device_attr_start attr = { 0 };
	refused("efadv_query_device", efadv_query_device(dev.ctx, &attr, sizeof(attr)), EOPNOTSUPP);
}

static void mlx4(void)
{
	open_device();
	struct ibv_qp_init_attr_ex attr = good();
	uint64_t room[32] = { 0 };
	refused("mlx4dv_init_obj", mlx4dv_init_obj(room, 1), EOPNOTSUPP);
	struct mlx4dv_context context;
	memset(&context, 0xff, sizeof(context));
	refused("mlx4dv_query_device", mlx4dv_query_device(dev.ctx, &context), 0);
	vt_check(!context.version && !context.max_inl_recv_sz && !context.comp_mask, "mlx4: version %u, inline %u, mask 0x%llx",
		 context.version, context.max_inl_recv_sz, (unsigned long long)context.comp_mask);
	refused("mlx4dv_set_context_attr", mlx4dv_set_context_attr(dev.ctx, 1, room), EOPNOTSUPP);
	no_object("mlx4dv_create_qp", mlx4dv_create_qp(dev.ctx, &attr, room));
}

static void mana(void)
{
	open_device();
	uint64_t room[32] = { 0 };
	refused("manadv_set_context_attr", manadv_set_context_attr(dev.ctx, 0, room), EOPNOTSUPP);
	refused("manadv_init_obj", manadv_init_obj(room, 1), EOPNOTSUPP);
}

static void ionic(void)
{
	open_device();
	vt_check(ionic_dv_ctx_get_udma_count(dev.ctx) == 0, "it has pipelines");
	vt_check(ionic_dv_ctx_get_udma_mask(dev.ctx) == 0, "the context has a mask of pipelines");
	vt_check(ionic_dv_pd_get_udma_mask(pd) == 0, "the PD has a mask of pipelines");
	refused("ionic_dv_pd_set_udma_mask", ionic_dv_pd_set_udma_mask(pd, 1), EPERM);
	refused("ionic_dv_pd_set_sqcmb", ionic_dv_pd_set_sqcmb(pd, true, true, false), EPERM);
	refused("ionic_dv_pd_set_rqcmb", ionic_dv_pd_set_rqcmb(pd, true, true, false), EPERM);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "hns", hns }, { "mlx5", mlx5 }, { "efa", efa }, { "mlx4", mlx4 },
						{ "mana", mana }, { "ionic", ionic } };
	return vt_main(argc, argv, cases, VT_ARRAY(cases));
}
