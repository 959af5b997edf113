//! The repository: reads go through views of the guard, and writes go to the database first.

use crate::database::{self, Database, Product, Statement};
use stampede_guard::{Cache, Error, FetchOutcome, Policy, StampedeGuard};
use std::{convert::Infallible, time::Duration};

#[derive(Clone)]
pub(crate) struct Shop {
    database: Database,
    /// `None` is stored too: the database is not asked again for a product that does not exist.
    products: Cache<Option<Product>>,
    /// The user of each session. A logout invalidates it, in all processes.
    sessions: Cache<Option<String>>,
    rates: Cache<f64>,
}

impl Shop {
    pub(crate) fn new(guard: &StampedeGuard, database: Database) -> Self {
        let policy = Policy::fresh_for(5 * MINUTE).stale_while_revalidate(MINUTE).stale_if_error(60 * MINUTE);
        Self {
            database,
            products: guard.cache("product").policy(policy),
            sessions: guard.cache("session").policy(Policy::fresh_for(MINUTE)),
            rates: guard.cache("rate").policy(Policy::default().stale_while_revalidate(60 * MINUTE)),
        }
    }

    pub(crate) async fn product(&self, name: &str) -> Result<Option<Product>, Error> {
        let (database, statement) = (self.database.clone(), Statement::Product { name: name.to_owned() });
        self.products.fetch(name, async move || database.query(&statement).await).await
    }

    /// Returns whether there is such a product.
    pub(crate) async fn reprice(&self, name: String, cents: u32) -> Result<bool, database::Error> {
        let is_known = self.database.query(&Statement::Reprice { name: name.clone(), cents }).await?;
        self.changed(&name).await;
        Ok(is_known)
    }

    /// Returns whether one was in stock.
    pub(crate) async fn order(&self, user: String, name: String) -> Result<bool, database::Error> {
        let is_ordered = self.database.query(&Statement::Order { user, name: name.clone() }).await?;
        self.changed(&name).await;
        Ok(is_ordered)
    }

    /// The basket of one user is read once and written often, so it is not cached.
    pub(crate) async fn basket(&self, user: String) -> Result<Vec<String>, database::Error> {
        self.database.query(&Statement::Basket { user }).await
    }

    /// Returns the token of a new session.
    pub(crate) async fn login(&self, user: String) -> Result<String, database::Error> {
        let token = format!("{:032x}", u128::from(random()) << 64 | u128::from(random()));
        let login = Statement::Login { token: token.clone(), user: user.clone() };
        self.database.query::<Option<String>>(&login).await?;
        report(self.sessions.put(&token, Some(user)).await); // the next request follows at once
        Ok(token)
    }

    /// Returns the user of a session, if it has not ended.
    pub(crate) async fn user(&self, token: &str) -> Result<Option<String>, Error> {
        let (database, statement) = (self.database.clone(), Statement::Session { token: token.to_owned() });
        self.sessions.fetch(token, async move || database.query(&statement).await).await
    }

    pub(crate) async fn logout(&self, token: String) -> Result<(), database::Error> {
        self.database.query::<Option<String>>(&Statement::Logout { token: token.clone() }).await?;
        report(self.sessions.invalidate(&token).await);
        Ok(())
    }

    /// Returns US dollars per euro. The bank says how long its rate holds. A caller waits for at most five seconds, and
    /// the bank is asked once, even if prices change.
    pub(crate) async fn rate(&self) -> Result<f64, Error> {
        let call = self.rates.entry("usd").timeout(Duration::from_secs(5));
        call.fetch_with(async |_| {
            println!("asking the bank");
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok::<_, Infallible>(FetchOutcome::new(1.09).fresh_for(60 * MINUTE))
        })
        .await
    }

    /// The bank has a new rate: callers get the old one until one of them has asked the bank.
    pub(crate) async fn rate_changed(&self) {
        report(self.rates.expire("usd").await);
    }

    async fn changed(&self, product: &str) {
        report(self.products.invalidate(product).await);
    }
}

/// Reports a change that the store has not acknowledged. The guard sends it again until it does; the row has
/// changed anyway.
pub(crate) fn report(invalidated: Result<(), Error>) {
    if let Err(error) = invalidated {
        eprintln!("other processes may show the old value for a while: {error}");
    }
}

/// Returns bits that no client can guess.
fn random() -> u64 {
    getrandom::u64().expect("the system has a source of randomness")
}

const MINUTE: Duration = Duration::from_secs(60);
