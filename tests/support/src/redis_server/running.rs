//! The process of one server, and its watchdog.

use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// A `redis-server` under a watchdog: a shell that waits for the end of its standard input and then kills the server.
/// This process holds that input open. So the server dies with this process, even if it is killed and cannot clean up.
#[derive(Debug)]
pub(super) struct Running {
    watchdog: Child,
    pid: u32,
    dir: TempDir,
}

impl Running {
    /// Starts a server that accepts connections on that port; returns `None` if the port is taken. The last argument is
    /// the flag of the port.
    pub(super) fn start(port: u16, args: &[String]) -> Option<Self> {
        require_redis_server();
        let running = Self::spawn(port, args);
        // Read the log and do not ask the port: some servers require a password or a certificate, and the port may be
        // another test's.
        for _ in 0..TICKS {
            let log = running.log();
            if log.contains("Ready to accept connections") {
                return Some(running);
            }
            if log.contains("Address already in use") {
                return None;
            }
            assert!(!log.contains("FATAL CONFIG FILE ERROR"), "redis-server does not know an argument:\n{log}");
            thread::sleep(TICK);
        }
        panic!("redis-server did not start on port {port} in time; it said:\n{}", running.log());
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    fn spawn(port: u16, args: &[String]) -> Self {
        let dir = tempfile::Builder::new().prefix("stampede-guard-redis-").tempdir().expect("a temporary directory");
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG])
            .arg(dir.path())
            .args(["--port", "0", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
            .arg(dir.path())
            .args(args)
            .arg(port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A signal to this process group, such as Ctrl-C, must not reach the watchdog.
            .process_group(0)
            .spawn()
            .expect("sh is on PATH");
        let mut pid = String::new();
        let stdout = watchdog.stdout.take().expect("standard output is a pipe");
        BufReader::new(stdout).read_line(&mut pid).expect("the watchdog prints the pid of the server");
        Self { watchdog, pid: pid.trim().parse().expect("a process id"), dir }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // `wait` closes the pipe first.
        let _ = self.watchdog.wait();
    }
}

fn require_redis_server() {
    let asked = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    if asked.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        panic!("redis-server is not on PATH, and these tests are about it: install it, or run scripts/test.sh");
    }
}

/// `$0` is the server's directory, the arguments are the server's. The death of this process orphans the process group.
/// If the server is paused then, the kernel sends HUP to the whole group. KILL ends a paused server as well.
const WATCHDOG: &str = r#"
trap '' HUP
redis-server "$@" >"$0/log" 2>&1 &
server=$!
echo "$server"
read -r _
kill -s KILL "$server"
wait "$server"
rm -rf "$0"
"#;

const TICK: Duration = Duration::from_millis(5);
const TICKS: usize = 2_000;
