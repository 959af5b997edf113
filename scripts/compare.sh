#!/usr/bin/env bash
# Runs the same work through this crate and through its peers. Progress is written to stderr. The last line is JSON with
# our own figures. Installs redis-server if it is missing.
#
#     scripts/compare.sh            everything, in less than twenty minutes on two cores, including the build; writes
#                                   docs/lab/comparison.md, docs/lab/comparison_*.svg and the table of README.md. The peers
#                                   need Rust 1.92 or later
#     scripts/compare.sh --quick    only our own rows, redis-rs and moka: a minute, plus two or three for the build
#
# Further arguments go to the program: --repeats N, --only SCENARIO, --subject NAME; see tools/peers/src/main.rs.
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
        compare --features peers -- --docs docs/lab --readme README.md "$@"
    fi
    printf 'scripts/compare.sh: %d min %d s\n' $((SECONDS / 60)) $((SECONDS % 60)) >&2
}

compare() {
    cargo run --release --locked --manifest-path tools/peers/Cargo.toml "$@"
}

fail() {
    printf '\nscripts/compare.sh: %s\n' "$1" >&2
    exit 1
}

main "$@"
