//! Child processes: this binary, started again with a job in its environment. Parent and child exchange lines of JSON.
//! A child exits when its parent has ended.

use crate::{Result, scenarios::Task, subject::Entry};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    env,
    process::Stdio,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{self, ChildStdin, ChildStdout, Command},
    time::{sleep, timeout},
};

#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) subject: String,
    pub(crate) url: String,
    pub(crate) task: Task,
}

/// Returns the job of this process, or `None` in the parent.
pub(crate) fn job() -> Option<Job> {
    serde_json::from_str(&env::var(JOB).ok()?).ok()
}

pub(crate) struct Child {
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// Killed on drop.
    _process: process::Child,
}

impl Child {
    pub(crate) fn start(subject: &Entry, url: String, task: Task) -> Result<Self> {
        let job = Job { subject: subject.name.to_owned(), url, task };
        let mut process = Command::new(env::current_exe()?)
            .env(JOB, serde_json::to_string(&job)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdin = process.stdin.take().ok_or("the child has no stdin")?;
        let stdout = process.stdout.take().ok_or("the child has no stdout")?;
        Ok(Self { stdin, lines: BufReader::new(stdout).lines(), _process: process })
    }

    /// Receives what the child sent with [`say`].
    pub(crate) async fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line =
            timeout(PATIENCE, self.lines.next_line()).await.map_err(|_| "a child says nothing for two minutes")??;
        Ok(serde_json::from_str(&line.ok_or("a child has died, see above")?)?)
    }

    /// Sends what the child receives with [`hear`].
    pub(crate) async fn tell<T: Serialize>(&mut self, what: &T) -> Result<()> {
        self.stdin.write_all(format!("{}\n", serde_json::to_string(what)?).as_bytes()).await?;
        Ok(self.stdin.flush().await?)
    }

    /// Waits until the child is ready, starts it, and returns its result.
    pub(crate) async fn whole<T: DeserializeOwned>(mut self) -> Result<T> {
        let () = self.hear().await?;
        self.tell(&soon()).await?;
        self.hear().await
    }
}

/// In the child: sends to the parent.
pub(crate) fn say<T: Serialize>(what: &T) -> Result<()> {
    println!("{}", serde_json::to_string(what)?);
    Ok(())
}

/// In the child: receives from the parent. Fails if the parent has ended, which ends the child.
pub(crate) async fn hear<T: DeserializeOwned + Send + 'static>() -> Result<T> {
    tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    })
    .await?
}

/// In the child: reports that it is ready, and waits until the start time that the parent sends.
pub(crate) async fn ready() -> Result<()> {
    say(&())?;
    let at: f64 = hear().await?;
    sleep(Duration::from_secs_f64((at - now()).max(0.0) / 1e3)).await;
    Ok(())
}

/// Returns a start time that is late enough to reach all children in time.
pub(crate) fn soon() -> f64 {
    now() + 20.0
}

/// Returns milliseconds since 1970, which are the same for all processes of a host.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e3)
}

const JOB: &str = "STAMPEDE_PEERS_JOB";
const PATIENCE: Duration = Duration::from_secs(120);
