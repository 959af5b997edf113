//! What the origin's answer to a HEAD says of a stored answer to a GET (RFC 9111 §4.3.5).

use super::{
    ask::{RESPONSE, stored},
    head,
    made::lifetimes,
    semantics::{
        freshness::Times,
        request::Wish,
        reuse::Facts,
        storing::{self, Shared},
        validation::{self, AfterHead},
    },
    vary::Selecting,
};
use crate::{
    clock,
    engine::{Keep, Place},
    entry::{Entry, Payload},
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use std::time::SystemTime;

/// Freshens the entry, drops the resource, or neither.
pub(super) async fn after_head(
    (place, entry): (Place, Entry),
    wish: &Wish,
    asked: SystemTime,
    status: StatusCode,
    headers: &HeaderMap,
) {
    // What is not for those who ask with such credentials says nothing of what they got, nor the other way round.
    let Some(known) = stored(&entry).filter(|known| known.facts.open.admits(wish.credentials)) else { return };
    match validation::after_head(&known.headers, status, headers) {
        AfterHead::Nothing => {}
        AfterHead::Stale => _ = place.to_primary().invalidate().await,
        AfterHead::Update => {
            let (rules, times) = (&place.config.rules, Times { asked, answered: clock::wall() });
            let merged = validation::updated(&known.headers, headers);
            let said = validation::aged(merged.clone(), headers);
            // Else its place would not be the one where it is looked for.
            let selected_alike = Selecting::of(&merged) == Selecting::of(&known.headers);
            if let Shared::Everybody(terms) = storing::shared(known.status, &said, wish.credentials, times, rules)
                && selected_alike
                && let Some(mut payload) = head::encode(known.status, &merged, terms.age, Facts::of(&merged, rules))
            {
                payload.extend_from_slice(&known.body);
                let keep = Keep { lifetimes: lifetimes(&place.config, &terms), codec: RESPONSE, index: None };
                place.replace(&entry, keep, Payload::from(Bytes::from(payload))).await;
            }
        }
    }
}
