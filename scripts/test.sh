#!/usr/bin/env bash
# Everything that has to hold before a change lands: formatting, lints, feature combinations, tests, docs.
# Installs what it needs besides Rust: redis-server, valgrind, rustfmt, clippy.
#
#     scripts/test.sh           some ten minutes on two cores, the first build included
#     scripts/test.sh --long    the same, then an hour or more: the model's large configurations, the long faults, ten
#                               times the seeds, schedules and inputs, and a soak
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Nothing here asks questions, and a caller may have closed standard input.
exec </dev/null
. scripts/need.sh

main() {
    step "tools"
    need_cargo
    need_component rustfmt fmt
    need_component clippy clippy
    need_redis
    need_valgrind
    cargo --version
    redis-server --version
    valgrind --version

    step "formatting"
    cargo fmt --all --check

    step "lints"
    cargo clippy --locked --all-targets --all-features -- -D warnings

    # The library alone: dev-dependencies would switch on features that users do not get.
    for features in "" redis cluster,tls-rustls http postcard json,tracing testing; do
        step "features: ${features:-none}"
        cargo clippy --locked --lib --no-default-features --features "$features" -- -D warnings
    done

    step "tests, examples and doctests"
    cargo test --locked --all-features --no-fail-fast

    step "instructions"
    cargo run --locked --release --manifest-path benches/instructions/Cargo.toml --target-dir target -- --check

    if [ "${1:-}" = --long ]; then
        long_variants
    fi

    step "docs"
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --all-features

    step "passed: formatting, lints, feature combinations, tests, examples, doctests, instructions, docs ($((SECONDS / 60)) min $((SECONDS % 60)) s)"
}

long_variants() {
    step "long variants"
    cargo test --locked --all-features --test faults -- --ignored --test-threads 1
    STAMPEDE_SIM_SEEDS=100000 cargo test --locked --release --all-features --test sim
    PROPTEST_CASES=40000 cargo test --locked --release --all-features --test fuzz
    SCHEDULES=10000 cargo test --locked --release --all-features --lib schedules
    cargo run --locked --release --example soak -- --seconds 60 --processes 3
    cargo test --locked --release --all-features --test model -- --ignored --test-threads 1
}

step() {
    printf '\n== %s\n' "$1"
}

fail() {
    printf '\nscripts/test.sh: %s\n' "$1" >&2
    exit 1
}

need_component() {
    if cargo "$2" --version >/dev/null 2>&1; then
        return
    fi
    command -v rustup >/dev/null || fail "$1 is missing, and so is rustup: install the $1 of your Rust, then run this again"
    rustup component add "$1"
}

main "$@"
