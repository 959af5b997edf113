//! Looks up the entry of a key, following redirects to the cache key of a variant.

use super::{
    flight::state::Found,
    frontend::{FollowedRedirect, MAX_REDIRECTS, Redirect, ReusePolicy},
    resource::Resource,
};
use crate::{clock::Timestamp, store::entry::Entry};
use std::{iter, marker::PhantomData, mem};

/// The lookup of one caller, at the cache key that the redirects have led to so far.
///
/// A redirect is confirmed if it comes from the store or from a leader. A remembered redirect is followed in advance,
/// so that it is read together with the entry that it leads to. Without the store, callers of a variant meet at the
/// cache key that the remembered redirects lead to.
pub(super) struct Lookup<R, J> {
    pub(super) resource: Resource,
    pub(super) policy: J,
    /// The redirects that were followed, the first one first.
    pub(super) redirects: Vec<FollowedRedirect>,
    /// The number of remembered redirects among them, which are the last ones.
    remembered: usize,
    answer: PhantomData<fn() -> R>,
}

impl<R, J: ReusePolicy<R>> Lookup<R, J> {
    pub(super) fn new(resource: Resource, policy: J) -> Self {
        Self { resource, policy, redirects: Vec::new(), remembered: 0, answer: PhantomData }
    }

    /// Returns to the last cache key that was confirmed, and follows the redirects that are remembered from there. A
    /// remembered redirect may have been invalidated while the entry of its variant is still stored.
    pub(super) fn predict(&mut self) {
        let confirmed = self.redirects.len() - mem::take(&mut self.remembered);
        if let Some(first) = self.redirects.drain(confirmed..).next() {
            self.resource.key = first.key;
        }
        while let Some(index) = self.resource.engine.redirect_cache.get(&self.resource.key)
            && let Some(redirect) = self.policy.redirect(&index)
            && self.follow_remembered(&redirect)
        {}
    }

    /// Returns the number of remembered redirects that were followed since the last confirmed cache key.
    pub(super) fn remembered(&self) -> usize {
        self.remembered
    }

    /// Reads the entry, and the remembered redirects that lead to it. Stays at the first cache key whose redirect has
    /// changed. Keeps the remembered redirects if the store does not answer.
    pub(super) async fn read(&mut self) -> Found {
        if self.remembered == 0 {
            return self.resource.get().await;
        }
        let confirmed = self.redirects.len() - self.remembered;
        let followed = self.redirects[confirmed..].iter().map(|redirect| &redirect.key);
        let keys: Vec<_> = followed.chain(iter::once(&self.resource.key)).cloned().collect();
        // Boxed, because few lookups follow redirects.
        let found = Box::pin(self.resource.get_all(&keys)).await?;
        self.remembered = 0;
        for (at, (pair, index)) in keys.windows(2).zip(&found).enumerate() {
            let redirect = index.as_ref().and_then(|index| self.policy.redirect_of(index, Timestamp::now()));
            if redirect.is_none_or(|redirect| redirect.target(&pair[0]) != pair[1]) {
                self.resource.engine.redirect_cache.forget(&pair[0]);
                self.redirects.truncate(confirmed + at);
                self.resource.key = pair[0].clone();
                return Ok(index.clone());
            }
        }
        Ok(found.into_iter().next_back().flatten())
    }

    /// Reads, and follows redirects, until there is no entry or one that is no redirect.
    pub(super) async fn find(&mut self) -> Found {
        loop {
            self.predict();
            let Some(entry) = self.read().await? else { return Ok(None) };
            match self.policy.redirect_of(&entry, Timestamp::now()) {
                Some(redirect) if self.follow(&entry, &redirect) => {}
                _ => return Ok(Some(entry)),
            }
        }
    }

    /// Follows the redirect of an entry in the store, and remembers it. Returns `false` if `MAX_REDIRECTS` is reached.
    pub(super) fn follow(&mut self, index: &Entry, redirect: &Redirect) -> bool {
        self.resource.engine.redirect_cache.remember(&self.resource.key, index);
        self.move_to(redirect)
    }

    /// Follows a redirect that a leader has confirmed. Returns `false` if `MAX_REDIRECTS` is reached.
    pub(super) fn move_to(&mut self, redirect: &Redirect) -> bool {
        self.follow_remembered(redirect) && {
            self.remembered = 0;
            true
        }
    }

    /// Follows a remembered redirect. Returns `false` if `MAX_REDIRECTS` is reached.
    pub(super) fn follow_remembered(&mut self, redirect: &Redirect) -> bool {
        let is_too_deep = self.redirects.len() == MAX_REDIRECTS;
        if !is_too_deep {
            let target = redirect.target(&self.resource.key);
            let key = mem::replace(&mut self.resource.key, target);
            self.redirects.push(FollowedRedirect { key, id: redirect.id, via: redirect.via.clone() });
            self.remembered += 1;
        }
        !is_too_deep
    }
}
