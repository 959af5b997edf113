//! The worker processes.

use crate::{Result, args::Duty, message::Message};
use std::{collections::HashMap, io, process::Stdio};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdout, Command},
    sync::mpsc,
};

/// The living workers by number. A replacement gets a new number. Dropping the fleet kills them.
pub(crate) struct Fleet {
    pub(crate) workers: HashMap<usize, Child>,
    duty: Duty,
    spawned: usize,
    inbox: mpsc::UnboundedSender<(usize, Option<Message>)>,
}

impl Fleet {
    /// Starts `n` workers. Their messages go to `inbox` with their number, and `None` when a worker has ended.
    pub(crate) fn start(n: usize, duty: Duty, inbox: mpsc::UnboundedSender<(usize, Option<Message>)>) -> Result<Self> {
        let mut fleet = Self { workers: HashMap::new(), duty, spawned: 0, inbox };
        for _ in 0..n {
            fleet.spawn()?;
        }
        Ok(fleet)
    }

    /// Starts one more worker in its own process group, so that Ctrl-C reaches the parent only. The parent ends its
    /// workers.
    pub(crate) fn spawn(&mut self) -> Result<()> {
        self.spawned += 1;
        let duty = Duty { seed: self.duty.seed.wrapping_add(self.spawned as u64), ..self.duty.clone() };
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--worker").arg(serde_json::to_string(&duty)?);
        #[cfg(unix)]
        command.process_group(0);
        let mut worker = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let stdout = worker.stdout.take().ok_or("a worker has no stdout")?;
        tokio::spawn(hear(self.spawned, stdout, self.inbox.clone()));
        self.workers.insert(self.spawned, worker);
        Ok(())
    }

    /// Kills a worker.
    pub(crate) async fn kill(&mut self, worker: usize) -> Result<()> {
        match self.workers.remove(&worker) {
            Some(mut worker) => Ok(worker.kill().await?),
            None => Ok(()),
        }
    }

    /// Tells all workers to end their load.
    pub(crate) async fn end(&mut self) -> io::Result<()> {
        for stdin in self.workers.values_mut().filter_map(|worker| worker.stdin.as_mut()) {
            stdin.write_all(b"end\n").await?;
        }
        Ok(())
    }

    /// Lets the workers that have come to rest exit, and waits for them.
    pub(crate) async fn leave(mut self) -> Result<()> {
        for (number, mut worker) in self.workers.drain() {
            drop(worker.stdin.take());
            let status = worker.wait().await?;
            if !status.success() {
                return Err(format!("worker {number} ended with {status}").into());
            }
        }
        Ok(())
    }
}

async fn hear(worker: usize, stdout: ChildStdout, inbox: mpsc::UnboundedSender<(usize, Option<Message>)>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let message = serde_json::from_str(&line);
        let message = message.unwrap_or_else(|_| Message::Violation(format!("a worker said: {line}")));
        let _ = inbox.send((worker, Some(message))); // the receiver may have been dropped already
    }
    let _ = inbox.send((worker, None));
}
