/* What the device asks for places in shared memory: crates/base/share/src/api.rs, whose tests compare it with this header. */
#ifndef SHARE_API_H
#define SHARE_API_H

#include <stddef.h>
#include <stdint.h>

#define SHARE_API_VERSION 4
#define SHARE_KIND_MEMFD 1
#define SHARE_KIND_SYSV 2
#define SHARE_KIND_WINDOW 3

struct share_place {
	uint32_t kind;
	int32_t fd;
	uint64_t object;
	uint64_t offset;
	uint64_t object_len;
	uint64_t incarnation;
};

struct share_api {
	uint32_t version;
	uint32_t size;
	int32_t (*find)(uintptr_t addr, size_t len, struct share_place *out);
	int32_t (*pin)(uintptr_t addr, size_t len, struct share_place *out);
	void (*unpin)(uint64_t object, uint64_t offset, size_t len);
	void (*set_fork_gate)(void (*before)(void), void (*after)(void));
	void (*part)(uintptr_t addr, size_t len);
	void (*set_reaper)(void (*called)(void));
	uint64_t (*reap)(void);
};

#endif
