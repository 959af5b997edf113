//! How long a lock is held yet, and what prolongs that.

use super::{recipe::Held, wanted::within};
use crate::{clock::Timestamp, lease::Hold, watch};
use std::{sync::Arc, time::Duration};

/// As far as is known here.
#[derive(Clone)]
pub(super) struct Tenure(Arc<watch::Sender<Known>>);

#[derive(Clone, Copy)]
struct Known {
    /// For ever if none.
    until: Option<Timestamp>,
    /// The server has said so.
    is_over: bool,
}

impl Tenure {
    pub(super) fn new(from: Timestamp, valid: Duration) -> Self {
        let until = (valid < Duration::MAX).then(|| from.after(valid));
        Self(Arc::new(watch::Sender::new(Known { until, is_over: false })))
    }

    pub(super) fn prolong(&self, from: Timestamp, valid: Duration) {
        self.0.send_modify(|known| known.until = Some(from.after(valid)));
    }

    /// The server has said that it is over.
    pub(super) fn end(&self) {
        self.0.send_modify(|known| known.is_over = true);
    }

    /// `None` if it does not end by itself.
    pub(super) fn remaining(&self) -> Option<Duration> {
        match self.0.subscribe().get() {
            Known { is_over: true, .. } => Some(Duration::ZERO),
            Known { until, .. } => until.map(|until| until.since(Timestamp::now())),
        }
    }

    /// Dropping the future loses nothing.
    pub(super) async fn ended(&self) {
        let known = self.0.subscribe();
        loop {
            let before = known.get();
            let changed = known.wait_for(|now| now.is_over || now.until != before.until);
            match self.remaining() {
                Some(Duration::ZERO) => return,
                Some(left) => drop(tokio::time::timeout(left, changed).await),
                None => drop(changed.await),
            }
        }
    }
}

/// Extends a lock every third of its ttl.
pub(super) struct Heartbeat {
    pub(super) held: Arc<dyn Held>,
    pub(super) tenure: Tenure,
    pub(super) ttl: Duration,
    pub(super) op_timeout: Duration,
    /// Not beyond that.
    pub(super) until: Timestamp,
}

impl Heartbeat {
    /// Aborted at any await, it has extended the lock or not.
    pub(super) async fn beat(self) {
        // It may begin when most of the ttl has passed.
        let mut pause = self.tenure.remaining().map_or(self.ttl, |left| left.min(self.ttl)) / 3;
        loop {
            tokio::time::sleep(pause).await;
            let sent = Timestamp::now();
            if sent >= self.until {
                return;
            }
            pause = match within(self.op_timeout, self.held.extend(self.ttl)).await {
                Ok(Hold::Held) => {
                    self.tenure.prolong(sent, self.ttl.saturating_sub(self.held.margin(self.ttl)));
                    self.ttl / 3
                }
                Ok(Hold::Lost) => return self.tenure.end(),
                // The server may answer the next one; if it does not, the time is over.
                Err(_) => self.ttl / 10,
            }
            .max(SHORTEST);
        }
    }
}

const SHORTEST: Duration = Duration::from_millis(1);
