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

# Valgrind counts instructions.
need_valgrind() {
    if command -v valgrind >/dev/null; then
        return
    fi
    install valgrind valgrind
    command -v valgrind >/dev/null ||
        fail "valgrind is missing: install it (Debian: apt-get install valgrind), so that it is on PATH, then run this again"
}

# install DEBIAN_PACKAGE BREW_PACKAGE: installs a package if that needs no questions.
install() {
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        apt_install "$1" || true
    elif command -v apt-get >/dev/null && sudo -n true 2>/dev/null; then
        apt_install "$1" sudo -n || true
    elif [ "$(uname)" = Darwin ] && command -v brew >/dev/null; then
        brew install "$2" || true
    fi
}

# apt_install PACKAGE [SUDO..]
apt_install() {
    local package=$1
    shift
    "$@" apt-get update
    "$@" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package"
}
