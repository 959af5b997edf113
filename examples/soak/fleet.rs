//! The worker processes.

use crate::{Result, args::Duty, message::Message};
use std::{collections::HashMap, io, process::Stdio};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdout, Command},
    sync::mpsc,
};

/// Living workers by number; a replacement gets a new one. Dropped, it kills them.
pub(crate) struct Fleet {
    pub(crate) workers: HashMap<usize, Child>,
    duty: Duty,
    spawned: usize,
    inbox: mpsc::UnboundedSender<(usize, Option<Message>)>,
}

impl Fleet {
    /// Whatever the workers say goes to `inbox`, with their number; `None` when one has ended.
    pub(crate) fn start(n: usize, duty: Duty, inbox: mpsc::UnboundedSender<(usize, Option<Message>)>) -> Result<Self> {
        let mut fleet = Self { workers: HashMap::new(), duty, spawned: 0, inbox };
        for _ in 0..n {
            fleet.spawn()?;
        }
        Ok(fleet)
    }

    /// One more. In a group of its own: a Ctrl-C in the terminal is for the parent, which ends its workers.
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

    /// Ends one at once.
    pub(crate) async fn kill(&mut self, worker: usize) -> Result<()> {
        match self.workers.remove(&worker) {
            Some(mut worker) => Ok(worker.kill().await?),
            None => Ok(()),
        }
    }

    /// Tells all to end their load.
    pub(crate) async fn end(&mut self) -> io::Result<()> {
        for stdin in self.workers.values_mut().filter_map(|worker| worker.stdin.as_mut()) {
            stdin.write_all(b"end\n").await?;
        }
        Ok(())
    }

    /// Lets all go that have come to rest.
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
        let _ = inbox.send((worker, Some(message))); // it may be over
    }
    let _ = inbox.send((worker, None));
}
