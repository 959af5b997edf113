//! What this cache decides, against what `http-cache-semantics` does. It goes by RFC 7234, the predecessor, and takes
//! liberties of its own: each kind of disagreement is listed with the clause, or the choice, that it comes from.

mod reasons;

use super::{
    fields,
    freshness::Times,
    kit::{at, date, headers, status},
    request::{Asked, Wish, asked},
    reuse::{Ages, Facts, Reuse, reuse},
    storing::{Shared, Terms, shared},
};
use crate::http::{rules::Rules, vary::Selecting};
use http::{HeaderMap, Method, Request, Response};
use http_cache_semantics::{CacheOptions, CachePolicy};
use proptest::{prelude::*, sample::select, strategy::ValueTree, test_runner::TestRunner};
use reasons::{Known, OLD_DATE, THEY_SERVE, THEY_STORE, WE_SERVE, WE_STORE};
use std::{collections::BTreeSet, time::Duration};

type Fields = Vec<(&'static str, String)>;

/// A GET that is answered, and a GET of the same some seconds later.
#[derive(Clone, Debug)]
struct Case {
    first: Fields,
    status: u16,
    answer: Fields,
    second: Fields,
    after: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Verdict {
    stored: bool,
    /// Whether the second request is answered without the origin.
    served: bool,
}

impl Case {
    fn head(fields: &Fields) -> HeaderMap {
        headers(&fields.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>())
    }

    fn ours(&self) -> Verdict {
        let rules = Rules::default().heuristic(0.1);
        let wish = |fields| asked(&Method::GET, &Self::head(fields), false, &rules);
        let mut answer = Self::head(&self.answer);
        let times = Times { asked: at(0), answered: at(0) };
        let terms = match wish(&self.first) {
            Asked::Cache(Wish { credentials, .. }) => shared(status(self.status), &answer, credentials, times, &rules),
            _ => return Verdict { stored: false, served: false },
        };
        let Shared::Everybody(terms) = terms else { return Verdict { stored: false, served: false } };
        fields::dated(&mut answer, at(0));
        Verdict {
            stored: true,
            served: matches!(wish(&self.second), Asked::Cache(wish) if self.serves(&answer, terms, wish)),
        }
    }

    fn serves(&self, stored: &HeaderMap, terms: Terms, wish: Wish) -> bool {
        let rules = Rules::default();
        let select = Selecting::of(stored).expect("it was stored");
        let values = |fields| {
            let mut values = Vec::new();
            select.values(&Self::head(fields), &rules, &mut values);
            values
        };
        let here = Duration::from_secs(self.after);
        let ages = Ages { age: terms.age + here, here, fresh_for: terms.lifetime.expect("never silent") };
        let reuse = reuse(&Facts::of(stored, &rules), &wish.demand, ages);
        values(&self.first) == values(&self.second)
            && terms.open.admits(wish.credentials)
            && matches!(reuse, Reuse::Fresh | Reuse::Stale)
    }

    fn theirs(&self) -> Verdict {
        let request = |fields| {
            let mut request = Request::get("http://h/").body(()).expect("a request");
            *request.headers_mut() = Self::head(fields);
            request
        };
        let mut answer = Response::new(());
        (*answer.status_mut(), *answer.headers_mut()) = (status(self.status), Self::head(&self.answer));
        let policy = CachePolicy::new_options(&request(&self.first), &answer, at(0), CacheOptions::default());
        let second = policy.before_request(&request(&self.second), at(self.after.cast_signed()));
        let stored = policy.is_storable();
        Verdict { stored, served: stored && second.satisfies_without_revalidation() }
    }

    /// Why they disagree.
    fn reasons(&self) -> Vec<&'static str> {
        let (ours, theirs) = (self.ours(), self.theirs());
        let table = match ours.stored == theirs.stored {
            true if ours.served == theirs.served => return vec!["agreed"],
            true if ours.served => WE_SERVE,
            true => THEY_SERVE,
            false if ours.stored => WE_STORE,
            false => THEY_STORE,
        };
        let known = Known::of(self);
        let reasons = table.iter().filter(|(_, applies)| applies(&known));
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

fn answer() -> impl Strategy<Value = Fields> {
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
        answer in answer(),
        second in request(),
        after in select(vec![0, 1, 4, 5, 9, 11, 12, 16, 39]),
    ) -> Case {
        Case { first, status, answer, second, after }
    }
}

proptest! {
    #[test]
    fn every_disagreement_is_one_that_is_listed(case in case()) {
        prop_assert!(!case.reasons().is_empty(), "ours {:?}, theirs {:?}", case.ours(), case.theirs());
    }
}

/// A reason that never applies would be no reason.
#[test]
fn every_disagreement_that_is_listed_exists() {
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
