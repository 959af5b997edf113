#!/usr/bin/env bash
# The same work through this crate and through its peers. Progress is on stderr; the last line is one of JSON, with our
# own figures. Installs redis-server if it is missing.
#
#     scripts/compare.sh            all, in less than twenty minutes on two cores, the build included; writes
#                                   docs/comparison.md and docs/comparison_*.svg. Needs Rust 1.92 or later, as peers do
#     scripts/compare.sh --quick    our own rows, redis-rs and moka, in a minute, and two or three for the build
#
# Further arguments go to the program: --repeats N, --only SCENARIO, --subject NAME; see benches/peers/src/main.rs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
. scripts/need.sh

main() {
    local quick=false
    for argument in "$@"; do
        [ "$argument" = --quick ] && quick=true
    done
    need_redis >&2
    if $quick; then
        need_cargo 1.88
        compare -- "$@"
    else
        need_cargo 1.92
        compare --features peers -- --docs docs "$@"
    fi
    printf 'scripts/compare.sh: %d min %d s\n' $((SECONDS / 60)) $((SECONDS % 60)) >&2
}

compare() {
    cargo run --release --locked --manifest-path benches/peers/Cargo.toml "$@"
}

fail() {
    printf '\nscripts/compare.sh: %s\n' "$1" >&2
    exit 1
}

main "$@"
