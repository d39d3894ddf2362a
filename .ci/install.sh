#!/bin/sh
# Installs the command `tqkv` and the library for llama.cpp from a release, for the user who runs it, without root.
#
#     sh install.sh                   both, to ~/.local
#     sh install.sh command           the command alone; `llama` for the library alone
#     PREFIX=/opt/tqkv sh install.sh  another folder
#
# It downloads archives and their checksums, compares them, and says which files it writes. TQKV_RELEASE names another place of the archives:
# the address of a folder, or of a release with the same files.
set -eu

version="0.1.0"
# Where releases are. Empty until the address is written here.
address=
prefix=${PREFIX:-$HOME/.local}
release=${TQKV_RELEASE:-${address:+$address/releases/download/v$version}}

fail() { echo "install.sh: $1" >&2 && exit 1; }

what=${1:-all}
case $what in
all) what="command llama" ;;
command | llama) ;;
*) fail "'$what' is not valid: expected command, llama or all" ;;
esac
[ -n "$release" ] || fail "version $version is not published yet: set TQKV_RELEASE to a folder of its archives"
if command -v curl >/dev/null; then
    get() { curl --fail --silent --show-error --location --output "$2" "$1"; }
elif command -v wget >/dev/null; then
    get() { wget --quiet --output-document "$2" "$1"; }
else
    fail "neither curl nor wget is there"
fi
if command -v sha256sum >/dev/null; then
    sum() { sha256sum "$1"; }
else
    sum() { shasum -a 256 "$1"; }
fi

case $(uname -s) in
Linux)
    # A program for musl runs everywhere, but a library that others load needs their C library.
    libc=gnu
    if ldd --version 2>&1 | grep -qi musl; then libc=musl; fi
    system=unknown-linux-$libc
    library=libggml_tqkv.so
    ;;
Darwin) system=apple-darwin library=libggml_tqkv.dylib ;;
*) fail "$(uname -s) is not served: on Windows unpack the archives of the release" ;;
esac
case $(uname -m) in
x86_64 | amd64) machine=x86_64 ;;
aarch64 | arm64) machine=aarch64 ;;
*) fail "processors of the kind $(uname -m) are not served: build from source with cargo" ;;
esac
target=$machine-$system
case "$what $target" in
"command llama "*musl) what=command && echo "The library for llama.cpp is left out, because it needs glibc." ;;
"llama "*musl) fail "the library for llama.cpp needs glibc" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
get "$release/SHA256SUMS" "$work/SHA256SUMS" || fail "no checksums at $release"

# Downloads and unpacks one archive.
take() {
    archive=$1-$version-$target
    echo "download $release/$archive.tar.gz"
    get "$release/$archive.tar.gz" "$work/$archive.tar.gz" || fail "$archive.tar.gz is not there"
    wanted=$(sed -n "s/ [ *]$archive\.tar\.gz\$//p" "$work/SHA256SUMS")
    found=$(sum "$work/$archive.tar.gz" | cut -d ' ' -f 1)
    [ -n "$wanted" ] || fail "SHA256SUMS does not name $archive.tar.gz"
    [ "$wanted" = "$found" ] || fail "$archive.tar.gz is damaged: its checksum is $found, expected $wanted"
    tar -xzf "$work/$archive.tar.gz" -C "$work"
}

# Writes a file in one step, so that no half of it stays.
put() {
    mkdir -p "$prefix/$(dirname "$2")"
    cp "$1" "$prefix/$2.new"
    chmod "$3" "$prefix/$2.new"
    mv "$prefix/$2.new" "$prefix/$2"
    echo "write $prefix/$2"
}

for one in $what; do
    case $one in
    command)
        take tqkv
        put "$work/$archive/tqkv" bin/tqkv 755
        for page in "$work/$archive"/man/*.1; do put "$page" "share/man/man1/$(basename "$page")" 644; done
        put "$work/$archive/completions/tqkv.bash" share/bash-completion/completions/tqkv 644
        put "$work/$archive/completions/_tqkv" share/zsh/site-functions/_tqkv 644
        put "$work/$archive/completions/tqkv.fish" share/fish/vendor_completions.d/tqkv.fish 644
        "$prefix/bin/tqkv" --version
        case :$PATH: in
        *:"$prefix/bin":*) ;;
        *) echo "$prefix/bin is not in PATH" ;;
        esac
        ;;
    llama)
        take tqkv-llama
        put "$work/$archive/$library" "lib/$library" 755
        echo "GGML_BACKEND_PATH=$prefix/lib/$library llama-server -m model.gguf"
        ;;
    esac
done
