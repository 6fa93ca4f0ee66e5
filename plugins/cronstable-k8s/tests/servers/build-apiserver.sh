#!/bin/sh
# Builds a kube-apiserver from Debian's source package "kubernetes", once, into a cache; prints the binary's path.
#
# Usage: build-apiserver.sh [CACHE]      (default: $XDG_CACHE_HOME or ~/.cache, then cronstable/kube-apiserver)
#
# Needs a Debian machine with apt and dpkg-deb, about 1.5 GB of disk and a few minutes on one core. Nothing is
# installed: compiler and sources are unpacked below CACHE, by an apt configuration that lies there too.
set -eu

cache=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/cronstable/kube-apiserver}
binary=$cache/kube-apiserver
limit=${CRONSTABLE_BUILD_LIMIT:-1800}
if [ -x "$binary" ]; then
    echo "$binary"
    exit 0
fi
say() { echo "kube-apiserver: $*" >&2; }

work=$cache/work
mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial" "$work/debs" "$work/tools"
cd "$work"

# The machine's own Debian sources, with their source packages. Its configuration is read and left alone.
: > apt/own.sources
: > apt/own.list
for file in /etc/apt/sources.list.d/*.sources; do
    [ -e "$file" ] || continue
    sed 's/^Types:.*/Types: deb deb-src/' "$file" >> apt/own.sources
    echo >> apt/own.sources
done
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -e "$file" ] || continue
    sed -n 's/^deb\(-src\)\{0,1\} \(.*\)/deb \2\ndeb-src \2/p' "$file" >> apt/own.list
done
mkdir -p apt/parts
mv apt/own.sources apt/own.list apt/parts/
cat > apt/apt.conf <<CONF
Dir::Etc::sourcelist "-";
Dir::Etc::sourceparts "$work/apt/parts";
Dir::State::lists "$work/apt/lists";
Dir::Cache "$work/apt";
CONF
export APT_CONFIG="$work/apt/apt.conf"
say "reading the package lists"
apt-get update >&2 || say "some package lists could not be read"

say "fetching the compiler and the sources"
compiler=$(apt-cache depends golang-go | sed -n 's/^ *Depends: \(golang-[0-9.]*-go\)$/\1/p' | head -n 1)
goroot="$work/tools/usr/lib/go-$(echo "$compiler" | sed 's/golang-\(.*\)-go/\1/')"
(cd debs && apt-get download "$compiler" "${compiler%-go}-src" golang-github-modern-go-reflect2-dev >&2)
for deb in debs/*.deb; do
    dpkg-deb -x "$deb" tools
done
apt-get source --download-only kubernetes >&2
gopath=$work/gopath
tree=$gopath/src/k8s.io/kubernetes
rm -rf "$gopath"
mkdir -p "$tree"
tar -xzf kubernetes_*.orig.tar.gz -C "$tree" --strip-components=1

# The vendored copy of this one crashes when compiled by Go 1.18 and later.
rm -rf "$tree/vendor/github.com/modern-go/reflect2"
cp -r tools/usr/share/gocode/src/github.com/modern-go/reflect2 "$tree/vendor/github.com/modern-go/reflect2"

export GOROOT="$goroot" GOPATH="$gopath" GOCACHE="$work/gocache" GO111MODULE=off GOFLAGS= GOTOOLCHAIN=local
export CGO_ENABLED=0 GOMAXPROCS="${CRONSTABLE_BUILD_CORES:-1}" TMPDIR="$work"
go="nice -n 19 timeout $limit $goroot/bin/go"
cd "$tree"

say "generating what the release leaves out"
$go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
inputs=$(grep -rl --include=*.go '+k8s:openapi-gen=' cmd pkg plugin staging/src/k8s.io \
    | grep -v -e '_test\.go$' -e '/testdata/' -e '/code-generator/' -e '/sample-apiserver/' -e '/_examples/' \
    | xargs -n 1 dirname | sed 's,^staging/src/,vendor/,; s,^,k8s.io/kubernetes/,' | LC_ALL=C sort -u | paste -s -d , -)
nice -n 19 timeout "$limit" "$work/openapi-gen" -i "$inputs" -p k8s.io/kubernetes/pkg/generated/openapi \
    -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt -r "$work/violations" >&2

version=v$(basename "$work"/kubernetes_*.orig.tar.gz .orig.tar.gz | sed 's/.*really//; s/^kubernetes_//')
minor=$(echo "$version" | sed 's/^v[0-9]*\.\([0-9]*\)\..*/\1/')
flags=
for package in client-go/pkg/version component-base/version; do
    for pair in "gitVersion=$version" gitMajor=1 "gitMinor=$minor"; do
        flags="$flags -X k8s.io/kubernetes/vendor/k8s.io/$package.$pair"
    done
done
say "compiling $version: a few minutes"
$go build -tags providerless,dockerless -ldflags "-s -w$flags" -o "$work/kube-apiserver" ./cmd/kube-apiserver
mv "$work/kube-apiserver" "$binary"
cd "$cache"
chmod -R u+w "$work"
rm -rf "$work"
say "built $("$binary" --version)"
echo "$binary"
