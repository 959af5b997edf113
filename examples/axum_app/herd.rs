//! The herd: requests that are sent at the same time, and the times of their answers.

use crate::{Result, client::Client};
use futures_util::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{sync::Barrier, task::JoinSet, time::Instant};

/// One request of the herd.
pub(crate) struct Shot {
    pub(crate) server: SocketAddr,
    pub(crate) path: String,
    /// The beginning of the expected body.
    pub(crate) answer: String,
}

/// The answers of the herd.
pub(crate) struct Answers {
    /// Time from the release to the end of each answer, or to its failure, in ascending order.
    times: Vec<Duration>,
    pub(crate) failed: usize,
    pub(crate) first_failure: Option<String>,
}

/// Is told of each request of a herd when it is sent and when it is answered.
pub(crate) trait Observer: Clone + Send + 'static {
    /// Called when a request is sent.
    fn on_sent(&self) {}

    /// Called when a request has its answer, or has failed.
    fn on_answer(&self, took: Duration, failed: bool);
}

impl Observer for ProgressBar {
    fn on_answer(&self, _: Duration, _: bool) {
        self.inc(1);
    }
}

/// Opens a connection per request, then sends all requests at the same time.
///
/// # Errors
///
/// If a connection cannot be opened. A request that fails is counted as an answer.
pub(crate) async fn fire(shots: Vec<Shot>, patience: Duration, observer: &impl Observer) -> Result<Answers> {
    let herd = shots.len();
    let ready: Vec<(Client, Shot)> = stream::iter(shots)
        .map(async |shot| Client::open(shot.server).await.map(|client| (client, shot)))
        .buffer_unordered(OPENING)
        .try_collect()
        .await?;

    let gate = Arc::new(Barrier::new(herd));
    let mut requests = JoinSet::new();
    for (client, shot) in ready {
        requests.spawn(ask(client, shot, patience, gate.clone(), observer.clone()));
    }
    let asked = requests.join_all().await;
    let released = asked.iter().map(|asked| asked.released).min();
    let mut answers = Answers { times: Vec::with_capacity(herd), failed: 0, first_failure: None };
    for Asked { answered, failure, .. } in asked {
        answers.times.extend(released.map(|released| answered - released));
        answers.failed += usize::from(failure.is_some());
        answers.first_failure = answers.first_failure.or(failure);
    }
    answers.times.sort_unstable();
    Ok(answers)
}

impl Answers {
    pub(crate) fn first(&self) -> Duration {
        self.times[0]
    }

    pub(crate) fn last(&self) -> Duration {
        self.times[self.times.len() - 1]
    }

    /// Returns the time within which this percentage of the herd had its answer (nearest rank).
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.times.len() * percent).div_ceil(100);
        self.times[rank.max(1) - 1]
    }
}

struct Asked {
    released: Instant,
    answered: Instant,
    failure: Option<String>,
}

async fn ask(mut client: Client, shot: Shot, patience: Duration, gate: Arc<Barrier>, observer: impl Observer) -> Asked {
    gate.wait().await;
    let released = Instant::now();
    observer.on_sent();
    let answer = tokio::time::timeout(patience, client.get(&shot.path)).await;
    let answered = Instant::now();
    let failure = match answer {
        Ok(Ok(body)) if body.starts_with(&shot.answer) => None,
        Ok(Ok(body)) => Some(format!("{} was answered with {body:?}", shot.path)),
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no answer within {patience:?}")),
    };
    observer.on_answer(answered - released, failure.is_some());
    Asked { released, answered, failure }
}

/// Added to the delay of the origin: the time limit of one request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Number of connections opened concurrently, which a small backlog can hold.
const OPENING: usize = 100;
