//! Reads over a connection of their own, which hears when what was read changes.

use super::{Address, Answer, Reads, ServerClock, entries, entry_name};
use crate::{
    store::{Track, Tracked},
    wire::{Subscriber, TrackedLink, store_error},
};
use std::sync::Arc;

pub(super) struct Tracking {
    pub(super) link: TrackedLink,
    pub(super) reads: Reads,
    pub(super) clock: Arc<ServerClock>,
    pub(super) subscriber: Option<Arc<Subscriber>>,
}

impl Track for Tracking {
    fn get_all<'a>(&'a self, at: &'a [Address]) -> Answer<'a, Tracked> {
        Box::pin(async move {
            self.link.start();
            if let Some(subscriber) = &self.subscriber {
                subscriber.start(); // as with any first question
            }
            self.link.connected().await.map_err(store_error)?;
            let line = self.link.line();
            let names: Vec<_> = at.iter().map(entry_name).collect();
            let marks = line.iter().flat_map(|line| names.iter().map(|name| line.mark(name.as_bytes()))).collect();
            let entries = entries(at, self.reads.get_all(&names).await?, &self.clock, &*self.link.link()).await;
            // Another connection may have been made meanwhile, and it may be the one that was read over.
            let unbroken =
                matches!((line, self.link.line()), (Some(before), Some(after)) if Arc::ptr_eq(&before, &after));
            Ok(Tracked { entries, marks: if unbroken { marks } else { Vec::new() } })
        })
    }
}
