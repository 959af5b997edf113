//! Compares the decisions of this cache with `http-cache-semantics`, which implements RFC 7234, the predecessor of
//! RFC 9111, with choices of its own. Each kind of disagreement is listed with the clause or the choice that causes it.

mod reasons;

use super::{
    freshness::Times,
    kit::{at, date, headers, status},
    request::{CacheRequest, Disposition, disposition},
    storing::{Storable, StorageTerms, storable},
    validation,
};
use crate::{config::http::HttpOptions, http::vary::SelectingFields};
use http::{HeaderMap, Method, Request, Response};
use http_cache_semantics::{CacheOptions, CachePolicy};
use proptest::{prelude::*, sample::select, strategy::ValueTree, test_runner::TestRunner};
use reasons::{CaseFacts, OLD_DATE, THEY_SERVE, THEY_STORE, WE_SERVE, WE_STORE};
use std::{collections::BTreeSet, time::Duration};

type Fields = Vec<(&'static str, String)>;

/// A GET with its response, and a second GET of the same URL some seconds later.
#[derive(Clone, Debug)]
struct Case {
    first: Fields,
    status: u16,
    response: Fields,
    second: Fields,
    after: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decision {
    stored: bool,
    /// Whether the second request is answered without the origin.
    served: bool,
}

impl Case {
    fn head(fields: &Fields) -> HeaderMap {
        headers(&fields.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>())
    }

    fn ours(&self) -> Decision {
        let options = HttpOptions::default().heuristic_freshness(0.1).honour_request_directives();
        let disposition_of = |fields| disposition(&Method::GET, &Self::head(fields), false, &options);
        let mut response = Self::head(&self.response);
        let times = Times { request_time: at(0), response_time: at(0) };
        let terms = match disposition_of(&self.first) {
            Disposition::Cache(CacheRequest { credentials, .. }) => {
                storable(status(self.status), &response, credentials, times, &options)
            }
            _ => return Decision { stored: false, served: false },
        };
        let Storable::Shared(terms) = terms else { return Decision { stored: false, served: false } };
        validation::dated(&mut response, at(0));
        Decision {
            stored: true,
            served: match disposition_of(&self.second) {
                Disposition::Cache(cache_request) => self.serves(&response, terms, cache_request),
                Disposition::Forward(_) | Disposition::Unsafe => false,
            },
        }
    }

    fn serves(&self, stored: &HeaderMap, terms: StorageTerms, cache_request: CacheRequest) -> bool {
        let select = SelectingFields::of(stored, true).expect("it was stored");
        let values = |fields| {
            let mut values = Vec::new();
            select.values(&Self::head(fields), &mut values);
            values
        };
        let resident_time = Duration::from_secs(self.after);
        let left = terms.lifetime.expect("never silent").saturating_sub(resident_time);
        let is_rejected = cache_request.directives.reject(terms.age + resident_time, resident_time, left);
        values(&self.first) == values(&self.second)
            && terms.sharing.auth_sharing.admits(cache_request.credentials)
            && !left.is_zero()
            && !is_rejected
    }

    fn theirs(&self) -> Decision {
        let request = |fields| {
            let mut request = Request::get("http://h/").body(()).expect("a request");
            *request.headers_mut() = Self::head(fields);
            request
        };
        let mut response = Response::new(());
        (*response.status_mut(), *response.headers_mut()) = (status(self.status), Self::head(&self.response));
        let policy = CachePolicy::new_options(&request(&self.first), &response, at(0), CacheOptions::default());
        let second = policy.before_request(&request(&self.second), at(self.after.cast_signed()));
        let stored = policy.is_storable();
        Decision { stored, served: stored && second.satisfies_without_revalidation() }
    }

    /// Returns the listed reasons for a disagreement.
    fn reasons(&self) -> Vec<&'static str> {
        let (ours, theirs) = (self.ours(), self.theirs());
        let table = match ours.stored == theirs.stored {
            true if ours.served == theirs.served => return vec!["agreed"],
            true if ours.served => WE_SERVE,
            true => THEY_SERVE,
            false if ours.stored => WE_STORE,
            false => THEY_STORE,
        };
        let facts = CaseFacts::of(self);
        let reasons = table.iter().filter(|(_, applies)| applies(&facts));
        reasons.map(|(reason, _)| *reason).collect()
    }
}

fn field(name: &'static str, values: &[&str]) -> impl Strategy<Value = Option<(&'static str, String)>> + use<> {
    let values: Vec<_> = values.iter().map(|value| (name, (*value).to_owned())).collect();
    proptest::option::weighted(0.4, select(values))
}

fn request() -> impl Strategy<Value = Fields> {
    let control = [
        "no-cache",
        "no-store",
        "max-age=0",
        "max-age=5",
        "max-age=40",
        "min-fresh=3",
        "max-stale",
        "max-stale=7",
        "max-stale=x",
        "max-age=40, max-stale=9",
        "min-fresh=2, max-stale",
        "x",
    ];
    let fields = (
        field("cache-control", &control),
        field("pragma", &["no-cache", "x"]),
        field("accept", &["a, b", "a,b", "b"]),
        proptest::option::weighted(0.1, Just(("authorization", "x".to_owned()))),
        proptest::option::weighted(0.1, Just(("cookie", "a=b".to_owned()))),
    );
    fields.prop_map(|(a, b, c, d, e)| [a, b, c, d, e].into_iter().flatten().collect())
}

fn response() -> impl Strategy<Value = Fields> {
    let lifetimes = [
        "max-age=9",
        "max-age=30",
        "max-age=0",
        "max-age=\"9\"",
        "max-age=x",
        "max-age=9, max-age=4",
        "s-maxage=20",
        "s-maxage=5, max-age=30",
        "x=y",
        "MAX-AGE=9",
    ];
    let others = [
        "public",
        "private",
        "Private",
        "no-store",
        "no-cache",
        "must-revalidate",
        "proxy-revalidate",
        "immutable",
        "must-understand",
        "must-understand, no-store",
        "no-transform",
    ];
    let [day, minute, later] = [date(-90_000), date(-100), date(12)];
    let modified = [minute.as_str(), &day, &later, "Sat, 01 Jan 1994 00:00:00 GMT"].map(str::to_owned);
    let fields = (
        field("cache-control", &lifetimes),
        field("cache-control", &others),
        field("cache-control", &others),
        field("expires", &[&later, "0", OLD_DATE, &minute]),
        field("date", &[&date(0), &date(-6), &minute, &later]),
        field("age", &["0", "4", "5, 90", "x"]),
        field("last-modified", &modified.each_ref().map(String::as_str)),
        field("etag", &["\"a\"", "W/\"a\""]),
        field("vary", &["accept", "*", "*, accept"]),
        proptest::option::weighted(
            0.1,
            select(vec![("set-cookie", "a=b".to_owned()), ("pragma", "no-cache".to_owned())]),
        ),
        proptest::option::weighted(0.1, select(vec![("cdn-cache-control", "max-age=9".to_owned())])),
    );
    fields
        .prop_map(|(a, b, c, d, e, f, g, h, i, j, k)| [a, b, c, d, e, f, g, h, i, j, k].into_iter().flatten().collect())
}

prop_compose! {
    fn case()(
        first in request(),
        status in select(vec![200, 200, 200, 200, 301, 302, 404, 410, 418, 400, 501]),
        response in response(),
        second in request(),
        after in select(vec![0, 1, 4, 5, 9, 11, 12, 16, 39]),
    ) -> Case {
        Case { first, status, response, second, after }
    }
}

proptest! {
    #[test]
    fn every_disagreement_has_a_listed_reason(case in case()) {
        prop_assert!(!case.reasons().is_empty(), "ours {:?}, theirs {:?}", case.ours(), case.theirs());
    }
}

/// A reason that never occurs must be removed from the list.
#[test]
fn every_listed_reason_occurs() {
    let (mut runner, cases) = (TestRunner::deterministic(), case());
    let mut missing: BTreeSet<_> =
        [WE_STORE, THEY_STORE, WE_SERVE, THEY_SERVE].concat().iter().map(|it| it.0).collect();
    for _ in 0..20_000 {
        for reason in cases.new_tree(&mut runner).expect("a case").current().reasons() {
            missing.remove(reason);
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("{missing:#?}");
}
