#!/bin/sh
# uninstall.sh ROOT: removes from ROOT (DESTDIR and PREFIX) what `make install`, `make install-debug` or the tarball's
# install.sh puts there, and nothing else. Directories go only if they are Vervain's own and empty.
set -eu
root=${1:?the directory is missing; type:  uninstall.sh PREFIX}
remove() { # FILE...
    for file; do rm -f -- "$root/$file"; done
}
remove bin/vervain lib/pkgconfig/vervain.pc include/vervain.h
for name in ibverbs rdmacm mlx5 mlx4 efa hns mana ionic; do
    remove "lib/vervain/lib$name.so.1" "lib/vervain/lib$name.so"
done
remove bin/acpcc share/man/man1/acpcc.1 include/acp.h lib/libacp.so.3 lib/libacp.so lib/libacpbl.so lib/libacpml.so lib/pkgconfig/acp.pc
remove include/pm.h lib/libpm.so.2 lib/libpm.so lib/pkgconfig/pm.pc
for package in "$root"/lib/python3*/dist-packages/vervain_acp "$root"/lib/python3*/site-packages/vervain_acp; do
    if [ -d "$package" ]; then rm -rf -- "$package/__pycache__" "$package"/*.py && rmdir --ignore-fail-on-non-empty -- "$package"; fi
done
remove lib/vervain/libvervain_preload.so lib/vervain/valgrind.supp lib/vervain/tsan.supp
for page in "" -run -launch -devices -doctor -env -acp -acp-memory -bench -bench-run -bench-serve -bench-compare -bench-report \
    -bench-plans -completions -man -job -job-run -job-list -job-kill -job-rsh -checkpoint -restart -gang; do
    remove "share/man/man1/vervain$page.1"
done
remove share/bash-completion/completions/vervain share/zsh/site-functions/_vervain \
    share/fish/vendor_completions.d/vervain.fish
remove share/doc/vervain/README.md share/doc/vervain/LICENSE-MIT share/doc/vervain/LICENSE-APACHE \
    share/doc/vervain/third-party.txt
for name in so so.1 so.1.0.0; do remove "lib/vervain/rsocket/librspreload.$name"; done
for name in ibverbs rdmacm mlx5 mlx4 efa hns mana ionic vervain_preload; do remove "lib/vervain/.debug/lib$name.so.debug"; done
remove lib/vervain/rsocket/.debug/librspreload.so.debug lib/.debug/libacp.so.debug lib/.debug/libpm.so.debug bin/.debug/vervain.debug
for own in bin/.debug lib/.debug lib/vervain/.debug lib/vervain/rsocket/.debug lib/vervain/rsocket lib/vervain share/doc/vervain; do
    if [ -d "$root/$own" ]; then rmdir --ignore-fail-on-non-empty -- "$root/$own"; fi
done
