//! Processes of our own: this binary, started again with a job in its environment. Parent and child talk in lines of
//! JSON; a child whose parent is gone ends.

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

/// What this process was started for, unless it is the first one.
pub(crate) fn job() -> Option<Job> {
    serde_json::from_str(&env::var(JOB).ok()?).ok()
}

pub(crate) struct Child {
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// Killed when this is dropped.
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

    /// What the child said with [`say`].
    pub(crate) async fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line =
            timeout(PATIENCE, self.lines.next_line()).await.map_err(|_| "a child says nothing for two minutes")??;
        Ok(serde_json::from_str(&line.ok_or("a child has died, see above")?)?)
    }

    /// Tells the child what it gets from [`hear`].
    pub(crate) async fn tell<T: Serialize>(&mut self, what: &T) -> Result<()> {
        self.stdin.write_all(format!("{}\n", serde_json::to_string(what)?).as_bytes()).await?;
        Ok(self.stdin.flush().await?)
    }

    /// Waits until it is ready, sends it off, and hears what came of it.
    pub(crate) async fn whole<T: DeserializeOwned>(mut self) -> Result<T> {
        let () = self.hear().await?;
        self.tell(&soon()).await?;
        self.hear().await
    }
}

/// In the child: to the parent.
pub(crate) fn say<T: Serialize>(what: &T) -> Result<()> {
    println!("{}", serde_json::to_string(what)?);
    Ok(())
}

/// In the child: what the parent says next. If it is gone, the child ends.
pub(crate) async fn hear<T: DeserializeOwned + Send + 'static>() -> Result<T> {
    tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    })
    .await?
}

/// In the child: says that it is ready, and waits until the moment that the parent names.
pub(crate) async fn ready() -> Result<()> {
    say(&())?;
    let at: f64 = hear().await?;
    sleep(Duration::from_secs_f64((at - now()).max(0.0) / 1e3)).await;
    Ok(())
}

/// A moment that all children can be told of before it comes.
pub(crate) fn soon() -> f64 {
    now() + 20.0
}

/// Milliseconds since 1970, which all processes of a host agree about.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e3)
}

const JOB: &str = "STAMPEDE_PEERS_JOB";
const PATIENCE: Duration = Duration::from_secs(120);
