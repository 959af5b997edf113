//! How long a lock is held yet, and what prolongs that.

use super::{recipe::Held, wanted::within};
use crate::{clock::Timestamp, lease::Hold, watch};
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// As far as is known here.
#[derive(Clone)]
pub(super) struct Tenure(Arc<watch::Sender<Known>>);

#[derive(Clone, Copy)]
struct Known {
    /// For ever if none.
    until: Option<Timestamp>,
    /// The server has said so.
    is_over: bool,
    /// How often an extension was asked for.
    asked: u64,
}

/// An extension that was asked for.
pub(super) struct Extension {
    number: u64,
    until: Timestamp,
}

impl Tenure {
    pub(super) fn new(from: Timestamp, valid: Duration) -> Self {
        let until = (valid < Duration::MAX).then(|| from.after(valid));
        Self(Arc::new(watch::Sender::new(Known { until, is_over: false, asked: 0 })))
    }

    /// Before an extension is asked for, and if that shortens the lock: it may be done without our hearing of it.
    pub(super) fn ask(&self, valid: Duration) -> Extension {
        let mut extension = Extension { number: 0, until: Timestamp::now().after(valid) };
        self.0.send_modify(|known| {
            known.asked += 1;
            extension.number = known.asked;
            known.shorten(extension.until);
        });
        extension
    }

    /// The server has done it. If another one was asked for since, that one may be what it has done last.
    pub(super) fn extended(&self, extension: &Extension) {
        self.0.send_modify(|known| {
            if known.asked == extension.number {
                known.until = Some(extension.until);
            } else {
                known.shorten(extension.until);
            }
        });
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
                Some(left) => drop(timeout(left, changed).await),
                None => drop(changed.await),
            }
        }
    }
}

impl Known {
    fn shorten(&mut self, until: Timestamp) {
        self.until = Some(self.until.map_or(until, |known| known.min(until)));
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
        let mut pause = self.ttl / 3;
        loop {
            self.sleep(pause).await;
            if Timestamp::now() >= self.until {
                return;
            }
            let extension = self.tenure.ask(self.ttl.saturating_sub(self.held.margin(self.ttl)));
            pause = match within(self.op_timeout, self.held.extend(self.ttl)).await {
                Ok(Hold::Held) => {
                    self.tenure.extended(&extension);
                    self.ttl / 3
                }
                Ok(Hold::Lost) => return self.tenure.end(),
                // The server may answer the next one; if it does not, the time is over.
                Err(_) => self.ttl / 10,
            };
        }
    }

    /// For so long, or for a third of what is left: there may be less of it than a ttl, from the beginning, or when somebody
    /// shortens it meanwhile.
    async fn sleep(&self, pause: Duration) {
        let known = self.tenure.0.subscribe();
        loop {
            let before = known.get();
            let pause = match self.tenure.remaining() {
                None | Some(Duration::ZERO) => pause,
                Some(left) => pause.min(left / 3),
            };
            let changed = known.wait_for(|now| now.until != before.until);
            if timeout(pause.max(SHORTEST), changed).await.is_err() {
                return;
            }
        }
    }
}

const SHORTEST: Duration = Duration::from_millis(1);
