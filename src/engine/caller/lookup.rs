//! The lookup of an entry: follows redirects, read by read or from memory.

use super::Caller;
use crate::{
    clock::Timestamp,
    engine::{
        frontend::{MAX_REDIRECTS, Redirect, Reuse, ReusePolicy},
        resource::Resource,
        wait_graph::WaitEdge,
    },
    key::CacheKey,
    policy::is_uncacheable_marker,
    store::{entry::Entry, error::StoreError},
};
use futures_util::FutureExt;
use std::sync::{Arc, atomic::Ordering::Relaxed};

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Caller<'a, R, J> {
    /// Returns the entry for the key and its cache key, even if it is of no use to this caller.
    pub(crate) async fn lookup_entry(mut self) -> Option<(Resource, Entry)> {
        let entry = self.find().await.ok()??;
        Some((self.resource, entry))
    }

    /// Looks up the entry for this caller and moves to its cache key. Follows redirects, and without the store the
    /// remembered ones.
    pub(super) async fn find(&mut self) -> Result<Option<Entry>, StoreError> {
        loop {
            let chain = self.resource.predicted_chain(&self.policy);
            let found = match self.look_up(&chain).await {
                Ok(found) => found,
                Err(error) => {
                    self.recall();
                    return Err(error);
                }
            };
            let mut found = chain.iter().zip(found).peekable();
            while let Some((_, entry)) = found.next_if(|(key, _)| **key == self.resource.key) {
                let Some(entry) = entry else { return Ok(None) };
                let Some(redirect) = self.redirect(&entry) else { return Ok(Some(entry)) };
                self.resource.engine.redirect_cache.remember(&self.resource.key, &entry);
                if !self.follow(redirect) {
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// Returns the redirect of the entry for this caller, if the entry is one.
    pub(super) fn redirect(&self, entry: &Entry) -> Option<Redirect> {
        let now = Timestamp::now();
        let is_redirect = !is_uncacheable_marker(entry, now) && self.policy.evaluate(entry, now) == Reuse::Redirect;
        is_redirect.then(|| self.policy.redirect(entry))?
    }

    /// Follows a redirect. Returns `false` if `MAX_REDIRECTS` is reached.
    pub(super) fn follow(&mut self, redirect: Redirect) -> bool {
        let is_too_deep = self.redirects.len() == MAX_REDIRECTS;
        if !is_too_deep {
            self.resource.key = redirect.target(&self.resource.key);
            self.redirects.push(redirect.via);
            self.wait_edge =
                WaitEdge::enter(&self.resource.engine.wait_graph, &self.resource.key, &self.active_fetches);
        }
        !is_too_deep
    }

    /// Follows remembered redirects, so that all callers without the store meet at the same cache key.
    fn recall(&mut self) {
        let here = (self.resource.key.clone(), self.redirects.len());
        while let Some(redirect) = self.resource.cached_redirect(&self.policy)
            && self.follow(redirect)
        {}
        self.recalled = Some(Box::new(here));
    }

    /// Returns to the last cache key that came from the store, before the next lookup. A remembered redirect
    /// may have been invalidated while the entry of its variant is still stored.
    pub(super) fn rewind(&mut self) {
        if let Some(recalled) = self.recalled.take() {
            let (key, redirects) = *recalled;
            self.resource.key = key;
            self.redirects.truncate(redirects);
            self.wait_edge =
                WaitEdge::enter(&self.resource.engine.wait_graph, &self.resource.key, &self.active_fetches);
        }
    }

    /// Reads the store once for all concurrent callers.
    async fn look_up(&self, chain: &Arc<[CacheKey]>) -> Result<Vec<Option<Entry>>, StoreError> {
        self.resource.check_breaker()?;
        let look_up = async {
            let at_once = &self.resource.engine.at_once;
            if at_once.load(Relaxed) {
                match self.resource.get(chain).now_or_never() {
                    Some(found) => return found, // the read is over and need not be shared
                    None => at_once.store(false, Relaxed),
                }
            }
            let (resource, limit, read) = (self.resource.clone(), self.resource.config.store_timeout, chain.clone());
            self.resource.engine.flights.look_up(chain, limit, async move { resource.get(&read).await }).await
        };
        // The timeout is outside of the shared future, so that the timer and the runtime of one caller do not affect
        // the other callers.
        self.resource.with_timeout("get", look_up).await
    }
}

impl Resource {
    /// Returns the cache key and the ones it redirects this caller to, if the redirects have not changed.
    fn predicted_chain<R>(&self, policy: &impl ReusePolicy<R>) -> Arc<[CacheKey]> {
        let Some(redirect) = self.cached_redirect(policy) else { return Arc::new([self.key.clone()]) };
        let mut chain = vec![self.key.clone(), redirect.target(&self.key)];
        while chain.len() <= MAX_REDIRECTS
            && let Some(key) = chain.last()
            && let Some(redirect) = self.engine.redirect_cache.redirect_of(key, policy)
        {
            chain.push(redirect.target(key));
        }
        chain.into()
    }

    /// Returns the remembered redirect of this cache key for this caller.
    fn cached_redirect<R>(&self, policy: &impl ReusePolicy<R>) -> Option<Redirect> {
        self.engine.redirect_cache.redirect_of(&self.key, policy)
    }
}
