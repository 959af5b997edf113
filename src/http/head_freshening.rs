//! Freshens a stored response to GET with the origin's response to a HEAD (RFC 9111 §4.3.5).

use super::{
    semantics::{
        fields,
        freshness::{StoredFreshness, Times},
        request::CacheRequest,
        storing::{self, Storable},
        validation::{self, AfterHead},
    },
    stored_response::{self, RESPONSE, stored},
    vary::SelectingFields,
};
use crate::{
    clock,
    engine::{
        frontend::{FollowedRedirect, StoreAs},
        resource::Resource,
    },
    store::entry::{Entry, Payload},
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use std::time::SystemTime;

/// Freshens the entry, invalidates the resource, or does nothing, as the response to the HEAD requires.
pub(super) async fn after_head(
    (resource, entry, redirects): (Resource, Entry, Vec<FollowedRedirect>),
    cache_request: &CacheRequest,
    request_time: SystemTime,
    status: StatusCode,
    headers: &HeaderMap,
) {
    // A stored response that these credentials may not see is unrelated to the response that they got.
    let Some(old) = stored(&entry).filter(|old| old.freshness.auth_sharing.admits(cache_request.credentials)) else {
        return;
    };
    match validation::after_head(&old.headers, status, headers) {
        AfterHead::Nothing => {}
        AfterHead::Stale => _ = resource.to_primary().invalidate().await,
        AfterHead::Update => {
            let (options, times) = (&resource.config.http, Times { request_time, response_time: clock::wall_clock() });
            let merged = validation::updated(&old.headers, headers);
            let stated = validation::aged(merged.clone(), headers);
            // With other selecting fields, requests would look for it under another variant.
            let same_selecting_fields = SelectingFields::of(&merged) == SelectingFields::of(&old.headers);
            if let Storable::Shared(terms) =
                storing::storable(old.status, &stated, cache_request.credentials, times, options)
                && same_selecting_fields
                && let Some(mut payload) = stored_response::encode(
                    old.status,
                    &merged,
                    &fields::of_one_request(&merged, options, &old.per_request),
                    terms.age,
                    StoredFreshness::of(&merged, options),
                )
            {
                payload.extend_from_slice(&old.body);
                let store_as = StoreAs {
                    lifetimes: stored_response::lifetimes(&resource.config, &terms),
                    codec: RESPONSE,
                    keeps_redirects: true,
                    index: None,
                };
                resource.freshen((&entry, &redirects), store_as, Payload::from(Bytes::from(payload))).await;
            }
        }
    }
}
