//! The fetch of one caller under a hit-for-pass marker.

use super::{Caller, attempt::RequestAttempt};
use crate::{
    cache_status::CacheStatus,
    clock::{self, Timestamp},
    engine::{
        fill_set::FillSet,
        frontend::{BoxFetch, Completed, Completion, FetchHead, FetchMode, ReusePolicy, Shareability},
    },
    store::{
        port::FillCondition,
        token::{Inbox, Token},
    },
};
use tokio::time::timeout_at;

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Caller<'a, R, J> {
    /// Fetches for this caller only. If the response turns out to be shareable after all, it replaces the marker.
    pub(super) async fn hit_for_pass(&self, marker: Token, fetch: BoxFetch<'a, R>) -> RequestAttempt<'a, R> {
        let resource = self.resource().clone();
        let (began, deadline) = (Timestamp::now(), clock::deadline_after(resource.config.fetch_timeout));
        let (id, redirects) = (Token::unique(Inbox::unique()), self.lookup.redirects.clone());
        let mode = FetchMode::HitForPass { id, redirects: redirects.clone(), deadline: deadline.into_std() };
        let FetchHead { response, sharing, mut completion } = self.fetch_alone(mode, fetch).await;
        let times = (began, Timestamp::now());
        if !matches!(completion, Completion::None) {
            self.resource().engine.tasks.spawn(async move {
                let completed = timeout_at(deadline, completion.completed()).await;
                if let Ok(Completed::Payload(payload)) = completed
                    && let Shareability::Cacheable(_, store_as) | Shareability::CacheableAtEnd(_, store_as) = sharing
                {
                    let fill_set = FillSet::new(id, times, store_as, payload).under(&redirects);
                    if resource.can_keep(&fill_set) {
                        let _ = resource.fill(FillCondition::ReplaceMarker(marker), &fill_set).await;
                    }
                }
            });
        }
        RequestAttempt::Fetched(response, CacheStatus::Bypass)
    }
}
