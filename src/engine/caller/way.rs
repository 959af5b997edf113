//! The way to an entry: read by read, past indexes, or by memory.

use super::Caller;
use crate::{
    clock::Timestamp,
    engine::{DEPTH, Hop, Judge, Place, Verdict, is_marker, waits::Waiting},
    entry::Entry,
    key::Address,
    store::StoreError,
};
use futures_util::FutureExt;
use std::sync::{Arc, atomic::Ordering::Relaxed};

impl<'a, R: Send + 'a, J: Judge<R> + Clone + Send + Sync + 'static> Caller<'a, R, J> {
    /// What is there, and where, whether it is for this caller or not.
    pub(crate) async fn found(mut self) -> Option<(Place, Entry)> {
        let entry = self.find().await.ok()??;
        Some((self.place, entry))
    }

    /// The entry for this caller, and its place: follows the indexes on the way, as remembered without the store.
    pub(super) async fn find(&mut self) -> Result<Option<Entry>, StoreError> {
        loop {
            let chain = self.place.likely(&self.judge);
            let found = match self.look_up(&chain).await {
                Ok(found) => found,
                Err(error) => {
                    self.recall();
                    return Err(error);
                }
            };
            let mut found = chain.iter().zip(found).peekable();
            while let Some((_, entry)) = found.next_if(|(at, _)| **at == self.place.at) {
                let Some(entry) = entry else { return Ok(None) };
                let Some(hop) = self.hop(&entry) else { return Ok(Some(entry)) };
                self.place.engine.known.remember(&self.place.at, &entry);
                if !self.descend(hop) {
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// Where the entry sends this caller, if it is an index.
    pub(super) fn hop(&self, entry: &Entry) -> Option<Hop> {
        let now = Timestamp::now();
        let is_index = !is_marker(entry, now) && self.judge.judge(entry, now) == Verdict::Beneath;
        is_index.then(|| self.judge.beneath(entry))?
    }

    /// Goes on at another address, unless it has come deep enough.
    pub(super) fn descend(&mut self, hop: Hop) -> bool {
        let deep = self.trail.len() == DEPTH;
        if !deep {
            self.place.at = hop.from(&self.place.at);
            self.trail.push(hop.passed);
            self.noted = Waiting::enter(&self.place, &self.leading);
        }
        !deep
    }

    /// Goes on by memory, to meet the others who do without the store.
    fn recall(&mut self) {
        let here = (self.place.at.clone(), self.trail.len());
        while let Some(hop) = self.place.remembered(&self.judge)
            && self.descend(hop)
        {}
        self.recalled = Some(Box::new(here));
    }

    /// Back to where the store has sent it, before that is asked again: what it remembers may have been invalidated, and
    /// the entry beneath is still there.
    pub(super) fn come_back(&mut self) {
        if let Some(recalled) = self.recalled.take() {
            let (at, passed) = *recalled;
            self.place.at = at;
            self.trail.truncate(passed);
            self.noted = Waiting::enter(&self.place, &self.leading);
        }
    }

    /// One read of the store, shared with everybody who asks meanwhile.
    async fn look_up(&self, chain: &Arc<[Address]>) -> Result<Vec<Option<Entry>>, StoreError> {
        self.place.gate()?;
        let look_up = async {
            let at_once = &self.place.engine.at_once;
            if at_once.load(Relaxed) {
                match self.place.get(chain).now_or_never() {
                    Some(found) => return found, // there is nothing to share
                    None => at_once.store(false, Relaxed),
                }
            }
            let (place, limit, read) = (self.place.clone(), self.place.config.op_timeout, chain.clone());
            self.place.engine.flights.look_up(chain, limit, async move { place.get(&read).await }).await
        };
        // Outside of what is shared: whose timer it is must not matter to the others, nor which runtime it is of.
        self.place.within("get", look_up).await
    }
}
