#!/bin/sh
# old-glibc.sh DIR: puts the C library and GCC's runtime of Debian 11 below DIR, and DIR/bin/cc: this machine's compiler, which links
# against those. With DIR/bin first in PATH, cargo makes programs and libraries that run with the glibc of Debian 11 and Ubuntu 20.04
# (2.31) and later: symbols have the versions of the library that is linked against, and std asks for newer ones when it runs.
# Nothing is installed. Fails, with a sentence, where the packages cannot be had (scripts/suite-packages.sh).
set -eu
mkdir -p "${1:?old-glibc.sh DIR}"
dir=$(cd "$1" && pwd) here=$(cd "$(dirname "$0")" && pwd)
[ ! -x "$dir/bin/cc" ] || exit 0
compiler=$(command -v cc) || {
    echo "vervain: there is no C compiler cc" >&2
    exit 1
}
rm -rf "$dir/root"
"$here/suite-packages.sh" --alone bullseye "$dir/root" libc6 libc6-dev libgcc-s1 libgcc-10-dev linux-libc-dev
# Links such as libpthread.so name files of the machine's root, which is another here.
find "$dir/root" -type l -lname '/*' | while read -r link; do ln -sfn "$dir/root$(readlink "$link")" "$link"; done
triplet=$($compiler -print-multiarch)
libraries=$dir/root/usr/lib/$triplet runtime=$dir/root/usr/lib/gcc/$triplet/10
mkdir -p "$dir/bin"
cat > "$dir/bin/cc.new" <<END
#!/bin/sh
# The compiler's own directories come before those of --sysroot, and -B and -L before them.
exec "$compiler" "--sysroot=$dir/root" "-B$runtime" "-B$libraries" "-L$libraries" "-L$dir/root/lib/$triplet" "\$@"
END
chmod +x "$dir/bin/cc.new"
mv "$dir/bin/cc.new" "$dir/bin/cc"
