//! The process of one server, and its watchdog.

use super::{binary::binary, cluster};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// What kind of server is started, and so what its arguments mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Plain,
    Tls,
    /// The arguments are lines of the configuration file, because a sentinel writes its state to that file.
    Sentinel,
}

/// A server under a watchdog: a shell that waits for the end of its standard input and then kills the server. This
/// process holds that input open. So the server dies with this process, even if it is killed and cannot clean up.
#[derive(Debug)]
pub(super) struct Running {
    watchdog: Child,
    pid: u32,
    dir: TempDir,
}

/// The server did not start because its binary was built without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoTls;

impl Running {
    /// Starts a server that accepts connections on that port.
    pub(super) fn start(mode: Mode, port: u16, args: &[String]) -> Result<Self, NoTls> {
        let running = Self::spawn(mode, port, args);
        // Read the log and do not ask the port: some servers require a password or a certificate.
        let mut looks_at_error = 0;
        for _ in 0..TICKS {
            let log = running.log();
            if ["Ready to accept connections", "Sentinel ID is"].iter().any(|ready| log.contains(ready)) {
                return Ok(running);
            }
            if has_no_tls(&log) {
                return Err(NoTls);
            }
            // The server writes the argument after this heading.
            looks_at_error += usize::from(log.contains("FATAL CONFIG FILE ERROR"));
            assert!(looks_at_error < 20, "the server does not know an argument:\n{log}");
            thread::sleep(TICK);
        }
        panic!("the server did not start on port {port} in time; it said:\n{}", running.log());
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    fn spawn(mode: Mode, port: u16, args: &[String]) -> Self {
        let dir = tempfile::Builder::new().prefix("stampede-guard-redis-").tempdir().expect("a temporary directory");
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG])
            .arg(dir.path())
            .arg(&binary().path)
            .args(arguments(mode, port, args, dir.path()))
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

/// Returns the arguments of a server whose files are in that directory. Later arguments replace earlier ones.
fn arguments(mode: Mode, number: u16, args: &[String], dir: &Path) -> Vec<String> {
    let (port, dir) = (number.to_string(), dir.to_str().expect("a path in UTF-8"));
    if mode == Mode::Sentinel {
        let file = format!("{dir}/sentinel.conf");
        let tls = cluster::tls_of_sentinel(number, args);
        let config = format!("port {port}\n{tls}bind 127.0.0.1\ndir {dir}\n{}\n", args.join("\n"));
        fs::write(&file, config).expect("written");
        return vec![file, "--sentinel".to_owned()];
    }
    let ports = match mode {
        Mode::Tls => ["--port", "0", "--tls-port", &port].map(str::to_owned).to_vec(),
        _ => [vec!["--port".to_owned(), port], cluster::tls_ports(number, args)].concat(),
    };
    let own = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", dir].map(str::to_owned);
    [&own[..], args, &ports].concat()
}

/// Reports whether the server was built without TLS: Redis up to 7.0 does not know the arguments, later servers say it.
fn has_no_tls(log: &str) -> bool {
    log.contains("Failed finding TLS support") || (log.contains(">>> 'tls-") && log.contains("Bad directive"))
}

/// `$0` is the server's directory, the arguments are the server's. The death of this process orphans the process group.
/// If the server is paused then, the kernel sends HUP to the whole group. KILL ends a paused server as well. A server that
/// does not know its own path cannot start itself again.
const WATCHDOG: &str = r#"
trap '' HUP
binary=$(command -v "$1")
shift
"$binary" "$@" >"$0/log" 2>&1 &
server=$!
echo "$server"
read -r _
kill -s KILL "$server"
wait "$server"
rm -rf "$0"
"#;

const TICK: Duration = Duration::from_millis(5);
const TICKS: usize = 2_000;
