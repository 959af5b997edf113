//! Child processes of a test: this test binary again, with one of its tests as the child.
//!
//! The other side is [`child`](super::child). Children die with the test.

use super::{
    child::{Env, MARK, VARIABLE},
    signal::signal,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{env, process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{self, ChildStdin, ChildStdout, Command},
    time,
};

/// Spawns `n` children with the task. Each child runs the test of that name (its path in this binary, as `--exact`
/// expects it).
pub fn spawn(n: usize, test: &str, task: &impl Serialize) -> Vec<Child> {
    (0..n).map(|index| Child::spawn(index, test, task)).collect()
}

/// Spawns `n` children, starts them together, and returns their results in order. Each child has to report once and to
/// pass.
pub async fn run<T: DeserializeOwned>(n: usize, test: &str, task: &impl Serialize) -> Vec<T> {
    let mut children = spawn(n, test, task);
    start_together(&mut children).await;
    let mut results = Vec::with_capacity(n);
    for mut child in children {
        results.push(child.result().await);
        child.passed().await;
    }
    results
}

/// Waits until all children are ready, then starts them.
pub async fn start_together(children: &mut [Child]) {
    for child in &mut *children {
        child.wait_ready().await;
    }
    for child in children {
        child.go().await;
    }
}

/// A child process. Dropping it kills the process.
#[derive(Debug)]
pub struct Child {
    process: process::Child,
    pid: u32,
    /// Open as long as this process lives; its end is the child's.
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// Output of the child besides messages.
    printed: Vec<String>,
}

impl Child {
    fn spawn(index: usize, test: &str, task: &impl Serialize) -> Self {
        let env = serde_json::to_string(&Env { index, task }).expect("a task that JSON can hold");
        let mut process = Command::new(env::current_exe().expect("this binary has a path"))
            .args(["--exact", test, "--nocapture"])
            .env(VARIABLE, env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("this binary runs once more");
        Self {
            pid: process.id().expect("the process was not awaited"),
            stdin: process.stdin.take().expect("standard input is a pipe"),
            lines: BufReader::new(process.stdout.take().expect("standard output is a pipe")).lines(),
            process,
            printed: Vec::new(),
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns when the child has called [`ready_and_wait`](super::child::ready_and_wait).
    pub async fn wait_ready(&mut self) {
        self.message("ready").await;
    }

    /// Ends the child's [`ready_and_wait`](super::child::ready_and_wait).
    pub async fn go(&mut self) {
        self.stdin.write_all(b"go\n").await.expect("the child lives");
    }

    /// Returns the child's next [`report`](super::child::report).
    pub async fn result<T: DeserializeOwned>(&mut self) -> T {
        let json = self.message("result").await;
        serde_json::from_str(&json).expect("parent and child agree on the type of the result")
    }

    /// Waits for the end of the child, and panics if its test failed. Returns the lines that it printed.
    pub async fn passed(mut self) -> Vec<String> {
        let end = async {
            while let Ok(Some(line)) = self.lines.next_line().await {
                self.printed.push(line);
            }
            self.process.wait().await
        };
        let status = time::timeout(BOUND, end).await.expect("the child comes to an end").expect("it is our child");
        assert!(status.success(), "the child failed ({status}); it printed:\n{}", self.printed.join("\n"));
        self.printed
    }

    /// Kills the child with SIGKILL; returns when it has ended.
    pub async fn kill(&mut self) {
        self.process.kill().await.expect("it is our child");
    }

    /// Pauses the child, as a long garbage collection or a sleeping laptop does.
    pub fn pause(&self) {
        signal("STOP", self.pid);
    }

    pub fn resume(&self) {
        signal("CONT", self.pid);
    }

    async fn message(&mut self, expected: &str) -> String {
        let message = time::timeout(BOUND, self.next_message()).await;
        let message = message.unwrap_or_else(|_| panic!("no `{expected}` from the child within {BOUND:?}"));
        let Some(message) = message else {
            let printed = self.printed.join("\n");
            panic!("the child ended without `{expected}`; is it the path of a test? It printed:\n{printed}");
        };
        let (word, payload) = message.split_once(' ').expect("a word, then what goes with it");
        assert_eq!(word, expected, "the child said `{message}`");
        payload.to_owned()
    }

    async fn next_message(&mut self) -> Option<String> {
        while let Some(line) = self.lines.next_line().await.expect("the child prints UTF-8") {
            match line.strip_prefix(MARK) {
                Some(message) => return Some(message.to_owned()),
                None => self.printed.push(line),
            }
        }
        None
    }
}

const BOUND: Duration = Duration::from_secs(60);
