//! A small database server, and a pool of connections to it. It stands for PostgreSQL: statements take time, connections
//! are few, and each statement is printed.

use deadpool::{
    Runtime,
    managed::{self, Metrics, Pool, PoolError, RecycleError, RecycleResult},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufStream},
    net::{TcpListener, TcpStream},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Product {
    pub(crate) name: String,
    /// In euro cents.
    pub(crate) cents: u32,
    pub(crate) stock: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Statement {
    /// Returns the product, if there is one.
    Product {
        name: String,
    },
    /// Returns whether there is such a product.
    Reprice {
        name: String,
        cents: u32,
    },
    /// Returns whether one was in stock.
    Order {
        user: String,
        name: String,
    },
    /// Returns the names of products.
    Basket {
        user: String,
    },
    Login {
        token: String,
        user: String,
    },
    /// Returns the user of the session, if it exists.
    Session {
        token: String,
    },
    Logout {
        token: String,
    },
}

#[derive(Default)]
struct Tables {
    products: BTreeMap<String, Product>,
    baskets: BTreeMap<String, Vec<String>>,
    sessions: BTreeMap<String, String>,
}

impl Tables {
    fn execute(&mut self, statement: Statement) -> Value {
        match statement {
            Statement::Product { name } => json!(self.products.get(&name)),
            Statement::Reprice { name, cents } => {
                json!(self.products.get_mut(&name).map(|product| product.cents = cents).is_some())
            }
            Statement::Order { user, name } => {
                let Some(product) = self.products.get_mut(&name).filter(|product| product.stock > 0) else {
                    return json!(false);
                };
                product.stock -= 1;
                self.baskets.entry(user).or_default().push(name);
                json!(true)
            }
            Statement::Basket { user } => json!(self.baskets.get(&user).cloned().unwrap_or_default()),
            Statement::Login { token, user } => json!(self.sessions.insert(token, user)),
            Statement::Session { token } => json!(self.sessions.get(&token)),
            Statement::Logout { token } => json!(self.sessions.remove(&token)),
        }
    }
}

/// Serves the tables until the runtime ends.
pub(crate) async fn serve(listener: TcpListener, latency: Duration) {
    let tea = Product { name: "tea".to_owned(), cents: 300, stock: 10 };
    let tables = Tables { products: [("tea".to_owned(), tea)].into(), ..Tables::default() };
    let tables = Arc::new(Mutex::new(tables));
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(answer(stream, tables.clone(), latency));
    }
}

async fn answer(stream: TcpStream, tables: Arc<Mutex<Tables>>, latency: Duration) -> io::Result<()> {
    let (mut stream, mut line) = (BufStream::new(stream), String::new());
    while stream.read_line(&mut line).await? > 0 {
        let statement = serde_json::from_str(&line)?;
        println!("database: {statement:?}");
        tokio::time::sleep(latency).await;
        let rows = tables.lock().expect("no statement panics").execute(statement);
        stream.write_all(format!("{rows}\n").as_bytes()).await?;
        stream.flush().await?;
        line.clear();
    }
    Ok(())
}

/// A connection of the pool.
pub(crate) struct Connection {
    stream: BufStream<TcpStream>,
    /// A query was dropped before its reply, which is still to come.
    is_busy: bool,
}

pub(crate) struct Manager(SocketAddr);

impl managed::Manager for Manager {
    type Type = Connection;
    type Error = io::Error;

    async fn create(&self) -> io::Result<Connection> {
        Ok(Connection { stream: BufStream::new(TcpStream::connect(self.0).await?), is_busy: false })
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<io::Error> {
        if connection.is_busy { Err(RecycleError::message("a query was dropped")) } else { Ok(()) }
    }
}

pub(crate) type Error = PoolError<io::Error>;

#[derive(Clone)]
pub(crate) struct Database(Pool<Manager>);

impl Database {
    /// Creates a pool. It connects when a statement needs a connection.
    pub(crate) fn new(address: SocketAddr) -> Self {
        let pool = Pool::builder(Manager(address)).max_size(MAX_CONNECTIONS);
        let pool = pool.wait_timeout(Some(PATIENCE)).create_timeout(Some(PATIENCE)).runtime(Runtime::Tokio1);
        Self(pool.build().expect("it has a runtime"))
    }

    pub(crate) async fn query<T: DeserializeOwned>(&self, statement: &Statement) -> Result<T, Error> {
        let mut connection = self.0.get().await?;
        connection.query(statement).await.map_err(PoolError::Backend)
    }

    pub(crate) fn close(&self) {
        self.0.close();
    }
}

impl Connection {
    async fn query<T: DeserializeOwned>(&mut self, statement: &Statement) -> io::Result<T> {
        self.is_busy = true;
        self.stream.write_all(format!("{}\n", json!(statement)).as_bytes()).await?;
        self.stream.flush().await?;
        let mut rows = String::new();
        self.stream.read_line(&mut rows).await?;
        self.is_busy = false;
        Ok(serde_json::from_str(&rows)?)
    }
}

/// Few, as for a real database. A herd of requests would wait for them without the guard.
const MAX_CONNECTIONS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(2);
