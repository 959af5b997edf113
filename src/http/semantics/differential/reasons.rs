//! Reasons for which the two caches may disagree.

use super::Case;
use crate::{
    config::http::HttpOptions,
    http::{
        directives::Directives,
        semantics::{
            freshness::{self, Times},
            kit::{at, status},
            request::Credentials,
            storing::{Storable, StorageTerms, storable},
            validation,
        },
        vary::SelectingFields,
    },
};
use http::{HeaderMap, header};
use std::time::Duration;

/// The facts that the reasons depend on.
pub(super) struct CaseFacts {
    after: Duration,
    status: u16,
    first: HeaderMap,
    second: HeaderMap,
    response: HeaderMap,
    stated: Directives,
    demanded: Directives,
    terms: Option<StorageTerms>,
}

impl CaseFacts {
    pub(super) fn of(case: &Case) -> Self {
        let [first, second, response] = [&case.first, &case.second, &case.response].map(Case::head);
        let options = HttpOptions::default().heuristic_freshness(0.1);
        let times = Times { request_time: at(0), response_time: at(0) };
        let credentials = Credentials::None;
        let terms = match storable(status(case.status), &response, credentials, times, &options) {
            Storable::Shared(terms) => Some(terms),
            _ => None,
        };
        let (stated, demanded) = (Directives::for_cache(&response, &[]), Directives::of(&second));
        Self {
            after: Duration::from_secs(case.after),
            status: case.status,
            first,
            second,
            response,
            stated,
            demanded,
            terms,
        }
    }

    fn says(&self, text: &str) -> bool {
        self.response.get_all("cache-control").iter().any(|line| line.to_str().is_ok_and(|line| line.contains(text)))
    }

    fn explicit(&self) -> bool {
        self.stated.max_age.or(self.stated.s_maxage).is_some() || self.response.contains_key("expires")
    }

    fn targeted(&self) -> bool {
        self.response.contains_key("cdn-cache-control")
    }

    fn upper_case(&self) -> bool {
        self.says("Private") || self.says("MAX-AGE")
    }

    fn twice(&self) -> bool {
        self.says("max-age=9, max-age=4")
    }

    /// Reports whether the initial age exceeds an `Age` field that is a single number.
    fn aged_otherwise(&self) -> bool {
        let field = self.response.get("age").and_then(|age| age.to_str().ok()?.parse().ok()).unwrap_or(0);
        Times { request_time: at(0), response_time: at(0) }.initial_age(&self.response) > Duration::from_secs(field)
    }

    fn arrives_fresh(&self) -> bool {
        let stated = Directives::for_cache(&self.response, &[]);
        let lifetime = freshness::explicit(&stated, &self.response, at(0)).unwrap_or_default();
        let age = Times { request_time: at(0), response_time: at(0) }.initial_age(&self.response);
        !stated.no_cache && lifetime > age
    }

    fn demands(&self, directive: &str) -> bool {
        let mut lines = self.second.get_all("cache-control").iter();
        lines.any(|line| line.to_str().is_ok_and(|line| line.contains(directive)))
    }
}

pub(super) type Reasons = &'static [(&'static str, fn(&CaseFacts) -> bool)];

pub(super) const WE_STORE: Reasons = &[
    ("RFC 9111 §3: with an explicit lifetime or public, any final status may be stored", |it| {
        ![200, 301, 302, 404, 501].contains(&it.status) && (it.explicit() || it.stated.public || it.targeted())
    }),
    ("RFC 9111 §5.2.2.3: must-understand overrides no-store", |it| it.stated.must_understand && it.stated.no_store),
    ("RFC 9213: a targeted field overrides Cache-Control", CaseFacts::targeted),
    ("RFC 9111 §5.2: directives are case-insensitive", CaseFacts::upper_case),
];

pub(super) const THEY_STORE: Reasons = &[
    ("choice: a server error is stored only while its own lifetime lasts", |it| it.status == 501),
    ("choice: cookies are not shared", |it| it.response.contains_key(header::SET_COOKIE)),
    ("choice: a Cookie is a credential", |it| it.first.contains_key(header::COOKIE)),
    ("choice: without a max-age, must-revalidate does not permit sharing with an Authorization", |it| {
        it.first.contains_key(header::AUTHORIZATION) && it.stated.must_revalidate && it.stated.max_age.is_none()
    }),
    ("choice: a response that is neither fresh nor has a validator is not stored", |it| {
        validation::conditions(&it.response).is_empty() && !it.arrives_fresh()
    }),
    ("choice: without a lifetime and a Last-Modified, heuristics store nothing", |it| {
        !it.explicit() && freshness::heuristic(&it.response, at(0), 0.1).is_none()
    }),
    ("RFC 9111 §4.1: a * matches no request", |it| SelectingFields::of(&it.response, true).is_none()),
    ("RFC 9111 §5.2: directives are case-insensitive", CaseFacts::upper_case),
    ("RFC 9111 §4.2.1: a repeated directive implies nothing else", |it| {
        it.twice() && it.first.contains_key(header::AUTHORIZATION)
    }),
    ("RFC 9213: a targeted field overrides Cache-Control", CaseFacts::targeted),
];

pub(super) const WE_SERVE: Reasons = &[
    ("RFC 9111 §5.2.2.8: proxy-revalidate forbids nothing while it is fresh", |it| it.stated.proxy_revalidate),
    ("RFC 9111 §5.4: Pragma counts only without a Cache-Control", |it| {
        it.second.contains_key(header::PRAGMA) && it.second.contains_key(header::CACHE_CONTROL)
    }),
    ("RFC 9111 §4.1: white space around commas is ignored", |it| it.first.get("accept") != it.second.get("accept")),
    ("RFC 9110 §5.6.7: dates have three forms", |it| {
        it.response.get(header::EXPIRES).is_some_and(|date| date == OLD_DATE)
    }),
    ("RFC 9111 §4.2.1: the shorter of two lifetimes counts, and implies nothing else", CaseFacts::twice),
    ("RFC 9111 §5.2: directives are case-insensitive", CaseFacts::upper_case),
    ("RFC 9213: a targeted field overrides Cache-Control", CaseFacts::targeted),
];

pub(super) const THEY_SERVE: Reasons = &[
    ("RFC 9111 §4.2.3: the Date counts, and of several ages the first", CaseFacts::aged_otherwise),
    ("RFC 9111 §4.2.1: the shorter of two lifetimes counts", CaseFacts::twice),
    ("choice: no request is answered by a stale response because it accepts one", |it| it.demands("max-stale")),
    ("RFC 8246: immutable is no lifetime", |it| {
        it.says("immutable") && it.stated.max_age.or(it.stated.s_maxage).is_none()
    }),
    ("choice: an age equal to max-age is validated", |it| {
        it.demanded.max_age == it.terms.map(|terms| terms.age + it.after)
    }),
    ("choice: a request with no-store is not answered from the cache either", |it| it.demanded.no_store),
    ("choice: a request with credentials is answered only by responses that permit it", |it| {
        it.second.contains_key(header::COOKIE) || it.second.contains_key(header::AUTHORIZATION)
    }),
    ("RFC 9111 §5.2: directives are case-insensitive", CaseFacts::upper_case),
    ("RFC 9213: a targeted field overrides Cache-Control", CaseFacts::targeted),
];

/// Sun, 06 Nov 1994 08:49:47 GMT, ten seconds after the answer.
pub(super) const OLD_DATE: &str = "Sunday, 06-Nov-94 08:49:47 GMT";
