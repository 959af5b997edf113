#!/usr/bin/env bash
# Everything that has to hold before a change is merged: formatting, lints, feature combinations, tests, docs.
# Installs what it needs besides Rust: redis-server, valgrind, rustfmt, clippy.
#
#     scripts/test.sh           all of it. Without Prometheus or Chromium, the tests of boards and alerts, or of the live
#                               page, are skipped. CONTRIBUTING.md says how long it takes
#     scripts/test.sh --all     the same, and skips nothing: installs Prometheus and Chromium first. CI runs this
#     scripts/test.sh --servers all of it, then the tests over Redis on each server that scripts/servers.sh fetches
#     scripts/test.sh quick     while working: formatting, lints, and the tests unit, engine, http and store
#     scripts/test.sh --release what a release needs besides: see scripts/release.sh. Half an hour on two cores
#     scripts/test.sh --long    all of it, then an hour or more: the model's large configurations, the long faults, ten
#                               times the seeds, schedules and inputs, and a soak
#
# --all, --servers and --long can be combined.
# One step by itself: scripts/test.sh formatting | lints | features | tests | instructions | docs | servers
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Nothing here asks questions, and a caller may have closed standard input.
exec </dev/null
. scripts/need.sh

# Most tests wait: for time to pass, for servers, for processes.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-8}"

# Each of these waits longer than all other tests of its binary.
patient=(a_sabotaged_soak_fails matrix::matrix boards::each_panel_has_data_after_the_demo)

main() {
    case "${1:-}" in
        "" | --all | --servers | --long) all "$@" ;;
        quick) quick ;;
        --release) bash scripts/release.sh ;;
        formatting | lints | features | tests | instructions | docs | servers) "$1" ;;
        patient_tests | other_tests | tests_over_redis | tests_of_faults) "$@" ;;
        *) fail "$1 is none of: quick, --all, --servers, --release, --long, formatting, lints, features, tests, instructions, docs,
    servers" ;;
    esac
}

all() {
    local require_ops=false servers=false long=false
    for flag in "$@"; do
        case "$flag" in
            --all) require_ops=true ;;
            --servers) servers=true ;;
            --long) long=true ;;
            *) fail "$flag is none of: --all, --servers, --long" ;;
        esac
    done
    tools
    need_valgrind
    valgrind --version
    if $require_ops; then
        need_prometheus
        need_chromium
        export STAMPEDE_REQUIRE_OPS=1
    fi
    ops_programs
    step "formatting"
    formatting
    # A first build is shorter if nothing is kept for the next one.
    [ -d "$(target)/debug" ] || export CARGO_INCREMENTAL=0
    # Steps that compute use the processors while other steps wait. They have the lowest priority, so that no test
    # starves. The instructions are built with optimisation, in a folder of their own.
    aside 19 instructions
    step "build of tests, examples and tools"
    run cargo test --locked --workspace --all-features --no-run

    step "tests, examples and doctests"
    aside 0 patient_tests
    aside 19 features docs lints
    run bash scripts/test.sh other_tests || failed="$failed tests"
    settle
    [ -z "$failed" ] || fail "failed:$failed"

    if $servers; then
        run bash scripts/test.sh servers
    fi
    if $long; then
        long_variants
    fi
    passed "formatting, tests, examples, doctests, lints, feature combinations, instructions, docs"
}

quick() {
    tools
    step "formatting"
    formatting
    step "lints"
    run bash scripts/test.sh lints
    step "tests: unit, engine, http, store"
    run cargo test --locked --workspace --all-features --no-fail-fast --lib --test engine --test http --test store
    passed "formatting, lints, unit tests, engine, http, store"
}

tools() {
    step "tools"
    need_cargo
    need_component rustfmt fmt
    need_component clippy clippy
    need_redis
    cargo --version
    redis-server --version
}

# What tests/ops needs. Its tests say the same, but their output is long.
ops_programs() {
    local program
    for program in prometheus promtool chromium chromedriver; do
        command -v "$program" || echo "$program is missing: the tests that need it are skipped; --all installs it"
    done
}

formatting() {
    cargo fmt --all --check
    if python3 -c "import yaml" 2>/dev/null; then
        python3 -c "import sys, yaml; [yaml.safe_load(open(path)) for path in sys.argv[1:]]" \
            .github/*/*.yml ops/prometheus/*.yml
    else
        echo "PyYAML is missing: the files of GitHub are not parsed"
    fi
}

lints() {
    cargo run --locked -q -p lint -- all
    cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
}

# The library alone: the other members, and dev-dependencies, would switch on features that users do not get. All
# pairs of features are in `--release`.
features() {
    ! cargo tree --locked -p stampede-guard -e normal --prefix none --no-default-features --features axum,redis |
        grep '^bincode ' || fail "bincode is needed without its feature"
    for features in "" redis,axum,postcard json,serde,uuid,tracing http,metrics,tracing http,lock,testing,unstable \
        lock,cluster,connection-manager,sentinel,tls-rustls,tracing; do
        echo "-- ${features:-none}"
        cargo clippy --locked -p stampede-guard --lib --no-default-features --features "$features" -- -D warnings
    done
    # As users run it, by the README.
    echo "-- axum_app"
    cargo clippy --locked --example axum_app -- -D warnings
}

# A test that hangs ends its step, not the whole run: each step takes 30 minutes at most.
tests() {
    run timeout 30m cargo test --locked --workspace --all-features --no-fail-fast "$@"
}

patient_tests() {
    tests --test soak --test faults --test ops -- --exact "${patient[@]}"
}

other_tests() {
    tests -- "${patient[@]/#/--skip=}"
}

# The tests over Redis on each server, one after another. A server may lack a feature: tests/servers/skips lists the
# tests that are skipped for that.
servers() {
    local name version path
    need_cargo
    step "servers"
    bash scripts/servers.sh >"$kept/servers"
    cat "$kept/servers"
    [ "$(cut -d' ' -f1 "$kept/servers" | LC_ALL=C sort)" = "$(cd tests/servers/skips && LC_ALL=C ls | sed 's/[.]txt$//')" ] ||
        fail "these are not the servers that tests/servers/skips lists"
    run cargo test --locked --workspace --all-features --no-run "${over_redis[@]/#/--test=}" --test=faults
    while read -r name version path; do
        export STAMPEDE_REDIS_SERVER=$path STAMPEDE_SKIPS=$kept/skips
        step "tests on $name $version"
        on_server "$name" "$version"
    done <"$kept/servers"
    step "passed and skipped tests of each server"
    cat "$kept/summary"
    [ -z "$failed" ] || fail "failed:$failed"
}

over_redis=(store fleet lock recipes locked_store servers)

# on_server NAME VERSION: the environment names its path.
on_server() {
    local before="$failed" skipped
    : >"$STAMPEDE_SKIPS"
    aside 0 tests_of_faults
    run bash scripts/test.sh tests_over_redis >"$kept/tests_over_redis" 2>&1 || failed="$failed tests_over_redis"
    cat "$kept/tests_over_redis"
    settle
    LC_ALL=C sort -u -o "$STAMPEDE_SKIPS" "$STAMPEDE_SKIPS"
    skipped=$(wc -l <"$STAMPEDE_SKIPS")
    # libtest counts a skipped test as passed.
    cat "$kept/tests_over_redis" "$kept/tests_of_faults" |
        awk -v server="$1 $2" -v skipped="$skipped" '/^test result:/ { passed += $4; failed += $6 }
            END { printf "%s: %d passed, %d failed, %d skipped\n", server, passed - skipped, failed, skipped }' >>"$kept/summary"
    sed 's/^/    /' "$STAMPEDE_SKIPS" >>"$kept/summary"
    diff -u "tests/servers/skips/$1.txt" "$STAMPEDE_SKIPS" || failed="$failed skips"
    [ "$failed" = "$before" ] || failed="$failed (on $1)"
}

tests_over_redis() {
    tests "${over_redis[@]/#/--test=}"
}

tests_of_faults() {
    tests --test=faults
}

instructions() {
    cargo run --locked --release --manifest-path benches/instructions/Cargo.toml --target-dir "$(target)" -- --check
}

docs() {
    RUSTDOCFLAGS="-D warnings" cargo doc --locked -p stampede-guard --no-deps --all-features
    # Without `unstable`: no public item may refer to one that is not.
    RUSTDOCFLAGS="-D warnings" cargo doc --locked -p stampede-guard --no-deps \
        --features cluster,connection-manager,json,metrics,postcard,sentinel,testing,tls-rustls
}

long_variants() {
    step "long variants"
    run cargo test --locked --workspace --all-features --test faults --test fleet --test servers -- --ignored \
        --test-threads 1
    STAMPEDE_SIM_SEEDS=100000 run cargo test --locked --release --workspace --all-features --test sim
    PROPTEST_CASES=40000 run cargo test --locked --release --workspace --all-features --test fuzz
    SCHEDULES=10000 run cargo test --locked --release --workspace --all-features --lib schedules
    run cargo run --locked --release -p soak -- --seconds 60 --processes 3
    run cargo test --locked --release -p model -- --ignored --test-threads 1
}

# Steps that run aside: their process groups and names, and where their output is kept until it can be printed.
groups=()
names=()
kept=$(mktemp -d)
failed=""

# run COMMAND..: in a process group of its own, which `stop` can end as a whole.
run() {
    local status=0
    set -m
    "$@" &
    set +m
    groups+=($!)
    wait $! || status=$?
    unset "groups[${#groups[@]}-1]"
    return $status
}

# aside NICENESS STEP..: starts the steps, one after another. A step at a low priority waits
# until steps without one have taken cargo's locks.
aside() {
    local niceness=$1 each='bash scripts/test.sh "$step" >"$0/$step" 2>&1; echo $? >"$0/$step.status"'
    shift
    set -m
    nice -n "$niceness" bash -c "sleep $((niceness / 5)); for step; do $each; done" "$kept" "$@" &
    set +m
    groups+=($!)
    names+=("$@")
}

# Waits for all steps that run aside, and prints the output of each.
settle() {
    local name
    wait
    groups=()
    for name in "${names[@]}"; do
        step "$name"
        cat "$kept/$name"
        [ "$(cat "$kept/$name.status")" = 0 ] || failed="$failed $name"
    done
    names=()
}

# Ends what still runs.
stop() {
    for group in "${groups[@]:-}"; do
        [ -z "$group" ] || kill -s TERM -- "-$group" 2>/dev/null || true
    done
    rm -rf "$kept"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

target() {
    cargo metadata --format-version 1 --no-deps --offline | sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
}

step() {
    printf '\n== %s\n' "$1"
}

passed() {
    step "passed: $1 ($((SECONDS / 60)) min $((SECONDS % 60)) s)"
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
