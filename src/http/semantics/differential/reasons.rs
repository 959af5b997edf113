//! Why two caches may disagree.

use super::Case;
use crate::http::{
    directives::Directives,
    rules::Rules,
    semantics::{
        freshness::{self, Times},
        kit::{at, status},
        request::Credentials,
        storing::{Shared, Terms, shared},
        validation,
    },
    vary::Selecting,
};
use http::{HeaderMap, header};
use std::time::Duration;

/// What the reasons go by.
pub(super) struct Known {
    after: Duration,
    status: u16,
    first: HeaderMap,
    second: HeaderMap,
    answer: HeaderMap,
    said: Directives,
    asked: Directives,
    terms: Option<Terms>,
}

impl Known {
    pub(super) fn of(case: &Case) -> Self {
        let [first, second, answer] = [&case.first, &case.second, &case.answer].map(Case::head);
        let rules = Rules::default().heuristic(0.1);
        let times = Times { asked: at(0), answered: at(0) };
        let credentials = Credentials::None;
        let terms = match shared(status(case.status), &answer, credentials, times, &rules) {
            Shared::Everybody(terms) => Some(terms),
            _ => None,
        };
        let (said, asked) = (Directives::for_cache(&answer, &[]).0, Directives::of(&second));
        Self { after: Duration::from_secs(case.after), status: case.status, first, second, answer, said, asked, terms }
    }

    fn says(&self, text: &str) -> bool {
        self.answer.get_all("cache-control").iter().any(|line| line.to_str().is_ok_and(|line| line.contains(text)))
    }

    fn explicit(&self) -> bool {
        self.said.max_age.or(self.said.s_maxage).is_some() || self.answer.contains_key("expires")
    }

    fn targeted(&self) -> bool {
        self.answer.contains_key("cdn-cache-control")
    }

    fn upper_case(&self) -> bool {
        self.says("Private") || self.says("MAX-AGE")
    }

    fn twice(&self) -> bool {
        self.says("max-age=9, max-age=4")
    }

    /// Whether it says that it is older than an `Age` that is one number.
    fn aged_otherwise(&self) -> bool {
        let field = self.answer.get("age").and_then(|age| age.to_str().ok()?.parse().ok()).unwrap_or(0);
        Times { asked: at(0), answered: at(0) }.initial_age(&self.answer) > Duration::from_secs(field)
    }

    fn arrives_fresh(&self) -> bool {
        let (said, source) = Directives::for_cache(&self.answer, &[]);
        let lifetime = freshness::explicit(&said, source, &self.answer, at(0)).unwrap_or_default();
        let age = Times { asked: at(0), answered: at(0) }.initial_age(&self.answer);
        !said.no_cache && lifetime > age
    }

    fn stale_for(&self) -> Duration {
        let fresh_for = self.terms.and_then(|terms| terms.lifetime).unwrap_or_default();
        self.after.saturating_sub(fresh_for)
    }
}

pub(super) type Reasons = &'static [(&'static str, fn(&Known) -> bool)];

pub(super) const WE_STORE: Reasons = &[
    ("RFC 9111 §3: with an explicit lifetime or public, any final status will do", |it| {
        ![200, 301, 302, 404, 501].contains(&it.status) && (it.explicit() || it.said.public || it.targeted())
    }),
    ("RFC 9111 §5.2.2.3: must-understand overrides no-store", |it| it.said.must_understand && it.said.no_store),
    ("RFC 9213: a targeted field overrides Cache-Control", Known::targeted),
    ("RFC 9111 §5.2: directives are case-insensitive", Known::upper_case),
];

pub(super) const THEY_STORE: Reasons = &[
    ("choice: server errors are never stored", |it| it.status == 501),
    ("choice: cookies are not shared", |it| it.answer.contains_key(header::SET_COOKIE)),
    ("choice: a Cookie is a credential", |it| it.first.contains_key(header::COOKIE)),
    ("choice: without a max-age, must-revalidate opens nothing to an Authorization", |it| {
        it.first.contains_key(header::AUTHORIZATION) && it.said.must_revalidate && it.said.max_age.is_none()
    }),
    ("choice: what is neither fresh nor can be validated is of no use", |it| {
        !validation::has_validator(&it.answer) && !it.arrives_fresh()
    }),
    ("choice: what says nothing of its freshness, and not when it was modified, is not stored by heuristics", |it| {
        !it.explicit() && freshness::heuristic(&it.answer, at(0), 0.1).is_none()
    }),
    ("RFC 9111 §4.1: a * is never selected", |it| Selecting::of(&it.answer).is_none()),
    ("RFC 9111 §5.2: directives are case-insensitive", Known::upper_case),
    ("RFC 9111 §4.2.1: nothing else is inferred from what is given twice", |it| {
        it.twice() && it.first.contains_key(header::AUTHORIZATION)
    }),
    ("RFC 9213: a targeted field overrides Cache-Control", Known::targeted),
];

pub(super) const WE_SERVE: Reasons = &[
    ("RFC 9111 §5.2.2.8: proxy-revalidate forbids nothing while it is fresh", |it| it.said.proxy_revalidate),
    ("RFC 9111 §5.4: Pragma counts where there is no Cache-Control", |it| {
        it.second.contains_key(header::PRAGMA) && it.second.contains_key(header::CACHE_CONTROL)
    }),
    ("RFC 8246: what is immutable is not reloaded", |it| it.said.immutable && it.asked.max_age.is_some()),
    ("RFC 9111 §4.1: white space around commas is nothing", |it| it.first.get("accept") != it.second.get("accept")),
    ("RFC 9110 §5.6.7: dates have three forms", |it| {
        it.answer.get(header::EXPIRES).is_some_and(|date| date == OLD_DATE)
    }),
    ("RFC 9111 §5.2.1.2: exceeded by no more than, not by less than", |it| it.asked.max_stale == Some(it.stale_for())),
    ("RFC 9111 §4.2.1: the shorter of two lifetimes counts, and nothing else is inferred", Known::twice),
    ("RFC 9111 §5.2: directives are case-insensitive", Known::upper_case),
    ("RFC 9213: a targeted field overrides Cache-Control", Known::targeted),
];

pub(super) const THEY_SERVE: Reasons = &[
    ("RFC 9111 §4.2.3: the Date counts, and of several ages the first", Known::aged_otherwise),
    ("RFC 9111 §4.2.1: the shorter of two lifetimes counts", Known::twice),
    ("RFC 9111 §4.2.4: these forbid to serve it stale, whatever the client accepts", |it| {
        it.asked.max_stale.is_some() && it.said.forbid_stale()
    }),
    ("RFC 8246: immutable is no lifetime", |it| it.said.immutable && it.said.max_age.or(it.said.s_maxage).is_none()),
    ("choice: a max-stale that is no number accepts nothing", |it| it.asked.max_stale == Some(Duration::ZERO)),
    ("choice: one that is as old as is accepted is validated", |it| {
        it.asked.max_age == it.terms.map(|terms| terms.age + it.after)
    }),
    ("choice: a request with no-store is not answered from the cache either", |it| it.asked.no_store),
    ("choice: nor is one with credentials, but by what says so", |it| {
        it.second.contains_key(header::COOKIE) || it.second.contains_key(header::AUTHORIZATION)
    }),
    ("RFC 9111 §5.2: directives are case-insensitive", Known::upper_case),
    ("RFC 9213: a targeted field overrides Cache-Control", Known::targeted),
];

/// Sun, 06 Nov 1994 08:49:47 GMT, ten seconds after the answer.
pub(super) const OLD_DATE: &str = "Sunday, 06-Nov-94 08:49:47 GMT";
