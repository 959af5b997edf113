//! A store whose entries are all large, so that the suite also runs over staged fills.

use bytes::Bytes;
use stampede_guard::{
    RedisStore,
    store::{
        Answer, CacheKey, Entry, FailureMarker, FillCondition, FillOutcome, Lease, LeaseReply, LeaseRequest,
        LeaseStatus, Leaves, Listener, Payload, Store, Token, Write,
    },
};
use std::time::Duration;

/// Fills entries with a long filler after their payload, and returns them without it.
pub(crate) struct Large(pub(crate) RedisStore);

pub(crate) const FILLER: usize = 64 << 10;

fn lengthened(entry: &Entry) -> Entry {
    let payload = [entry.payload().bytes(), &[b'.'; FILLER][..]].concat();
    Entry::new(*entry.meta(), Payload::from(Bytes::from(payload)).with_validator(entry.payload().validator().clone()))
}

fn shortened(entry: &Entry) -> Entry {
    let payload = entry.payload().bytes();
    let rest = payload.len().checked_sub(FILLER).expect("every entry of this store is large");
    let validator = entry.payload().validator().clone();
    Entry::new(*entry.meta(), Payload::from(payload.slice(..rest)).with_validator(validator))
}

impl Store for Large {
    fn get<'a>(&'a self, key: &'a CacheKey) -> Answer<'a, Option<Entry>> {
        Box::pin(async move { Ok(self.0.get(key).await?.as_ref().map(shortened)) })
    }

    fn get_all<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, Vec<Option<Entry>>> {
        Box::pin(async move {
            Ok(self.0.get_all(keys).await?.into_iter().map(|found| found.as_ref().map(shortened)).collect())
        })
    }

    fn get_or_lease<'a>(&'a self, key: &'a CacheKey, request: LeaseRequest) -> Answer<'a, LeaseReply> {
        Box::pin(async move {
            Ok(match self.0.get_or_lease(key, request).await? {
                LeaseReply::Hit(entry) => LeaseReply::Hit(shortened(&entry)),
                reply => reply,
            })
        })
    }

    fn fill<'a>(&'a self, key: &'a CacheKey, condition: FillCondition, writes: Vec<Write>) -> Answer<'a, FillOutcome> {
        let lengthen = |mut write: Write| {
            write.entry = lengthened(&write.entry);
            write
        };
        self.0.fill(key, condition, writes.into_iter().map(lengthen).collect())
    }

    fn release<'a>(
        &'a self,
        key: &'a CacheKey,
        token: Token,
        failure_marker: Option<FailureMarker>,
    ) -> Answer<'a, LeaseStatus> {
        self.0.release(key, token, failure_marker)
    }

    fn extend<'a>(&'a self, key: &'a CacheKey, lease: Lease, span: Duration) -> Answer<'a, LeaseStatus> {
        self.0.extend(key, lease, span)
    }

    fn invalidate<'a>(&'a self, keys: &'a [CacheKey], leaves: Leaves) -> Answer<'a, Option<Lease>> {
        self.0.invalidate(keys, leaves)
    }

    fn listen(&self, key: &CacheKey) -> Listener {
        self.0.listen(key)
    }
}
