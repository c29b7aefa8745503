#!/usr/bin/env bash
# Runs a command on 64-bit ARM, on a machine with another CPU: in a Debian in the folder ROOT, which is made if it is not
# there (1 GB, some minutes). The current folder is /src in it. Programs are emulated, some 10 times slower than natively,
# so nothing can be timed; only the C compiler is the cross compiler of this machine, and runs as it is.
#
#   tools/arm/enter.sh ROOT COMMAND [ARGUMENT...]
#   tools/arm/enter.sh /var/tmp/arm pip install .
#   tools/arm/enter.sh /var/tmp/arm python -m dynet_cy info
#
# Where it cannot be done, a line says why and the status is 69. What is mounted for a command ends with it, so ROOT can be
# removed like any folder. The emulator stays known to the kernel (binfmt_misc), until the machine is started again.
set -euo pipefail

fail() {
    echo "enter.sh: $*" >&2
    exit 69
}

# In mounts of its own.
if [ -z "${DYNET_CY_ARM_MOUNTS:-}" ]; then
    [ "$(id -u)" = 0 ] || fail "only root can mount and change the root"
    for tool in qemu-aarch64-static debootstrap aarch64-linux-gnu-gcc; do
        [ -x "$(command -v $tool)" ] ||
            fail "no $tool: apt-get install qemu-user-static debootstrap gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    done
    unshare --mount true 2>/dev/null || fail "mounts are not allowed here (unshare --mount)"
    DYNET_CY_ARM_MOUNTS=1 exec unshare --mount --propagation private "$BASH" "$0" "$@"
fi
unset DYNET_CY_ARM_MOUNTS
mkdir -p "$(dirname "$1")"
root=$(readlink -f "$1")
shift

# The kernel starts the emulator for programs whose header says ARM. F: it is opened now, as ROOT does not have it.
formats=/proc/sys/fs/binfmt_misc
[ -e $formats/register ] || mount -t binfmt_misc binfmt_misc $formats || fail "binfmt_misc cannot be mounted"
if [ ! -e $formats/qemu-aarch64 ]; then
    magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    printf '%s' ":qemu-aarch64:M::$magic:$mask:$(command -v qemu-aarch64-static):F" >$formats/register ||
        fail "binfmt_misc does not take the emulator"
fi

if [ ! -e "$root" ]; then
    # The release of this machine, from where it gets its packages; elsewhere Debian's.
    suite=bookworm mirror=http://deb.debian.org/debian
    if grep -qx ID=debian /etc/os-release; then
        suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
        mirror=$(apt-get indextargets --format '$(SITE)' "Codename: $suite" | head -n 1)
    fi
    rm -rf "$root.part"
    debootstrap --arch=arm64 --variant=minbase --include=python3,python3-venv,python3-dev,libc6-dev,ca-certificates,procps \
        "$suite" "$root.part" "$mirror" >"$root.log" 2>&1 || fail "debootstrap failed: $root.log"
    mv "$root.part" "$root"
fi

# Programs of this machine run if they find their loader and libraries.
share() {
    mkdir -p "$root$1"
    mount --bind "$(readlink -f "$1")" "$root$1"
}
for folder in /lib64 /usr/lib/x86_64-linux-gnu /usr/lib/gcc-cross /usr/aarch64-linux-gnu /etc/ssl/certs; do share $folder; done
for tool in gcc as ld ar; do cp --dereference "/usr/bin/aarch64-linux-gnu-$tool" "$root/usr/bin/"; done
mkdir -p "$root/src"
mount --bind . "$root/src"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
for file in /etc/pip.conf /etc/resolv.conf; do
    if [ -e $file ]; then cp $file "$root/etc/"; fi
done

# A CPU that there is: the emulator's own one has everything, SME included.
export QEMU_CPU=${QEMU_CPU:-neoverse-n1}
export HOME=/root PATH=/venv/bin:/usr/bin:/bin:/usr/sbin:/sbin
export CC=aarch64-linux-gnu-gcc LDSHARED="aarch64-linux-gnu-gcc -shared"
unset VIRTUAL_ENV PYTHONPATH PYTHONHOME CCACHE_BASEDIR CCACHE_NOHASHDIR
[ -x "$root/venv/bin/python" ] || chroot "$root" python3 -m venv /venv
exec chroot "$root" bash -c 'cd /src && exec "$@"' bash "$@"
