/* vt_saved: what the tests of vervain_save and vervain_restore share (vervain.h): the functions, and objects that find themselves again. */
#ifndef VT_SAVED_H
#define VT_SAVED_H

#include "vt.h"

#include "../../crates/verbs/libibverbs/include/vervain.h"

/* Not linked: the library that a program is compiled with has no such functions. */
extern int (*vt_vstop)(struct ibv_context *, const struct vervain_stop_attr *);
extern int (*vt_vgo)(struct ibv_context *);
extern int (*vt_vsave)(struct ibv_context *, int, const struct vervain_save_attr *);
extern int (*vt_vrestore)(struct ibv_context *, int, const struct vervain_restore_attr *);
void vt_saved_find(void);

#define VT_TOLD 48
/* An object of a test, in the order of making. `at` is where the test has the pointer to it. */
struct vt_thing {
	uint32_t kind, handle, number, calls;
	uint64_t user_context;
	void **at;
	uint64_t told[VT_TOLD]; /* by a query before the save */
};
#define VT_THINGS 96
struct vt_things {
	unsigned n;
	struct vt_thing all[VT_THINGS];
	/* Of the calls of `restored`, to see that they come in order. */
	uint32_t last_kind;
	int last;
};

/* Notes that `*at` was made. */
void vt_keep(struct vt_things *t, uint32_t kind, void **at);
/* Notes what queries tell; called while all stands. */
void vt_note_all(struct vt_things *t);
/* Checks that queries tell the same. */
void vt_compare_all(struct vt_things *t);
/* Destroys all, the last one first; each must let itself be destroyed. */
void vt_destroy_all(struct vt_things *t);
/* vervain_restore_attr.restored, for `user` of this type: puts the objects where the test has them. */
void vt_found_again(void *user, const struct vervain_object *o);
/* vervain_restore, and whether each object was named. */
int vt_restore_all(struct vt_things *t, struct ibv_context *ctx, int fd);

/* An empty memfd for an image, and one that stands at its begin again. */
int vt_image(void);
void vt_rewind(int fd);

#endif
