//! A test's server over HTTP, on a loopback listener, and a client that speaks to it.

use std::sync::Arc;

use berth::ops::Berth;
use reqwest::header::HeaderMap;
use serde_json::Value;
use sqlx::{Connection, Executor, PgConnection, SqliteConnection};
use tokio::task::JoinHandle;

use super::{Db, World};

/// The key that the first start of a test's world makes: admin and operator.
pub const KEY: &str = "a-bootstrap-key-of-the-tests-0123456789";

/// A client of one server; the server goes with it.
pub struct Wire {
    pub url: String,
    pub http: reqwest::Client,
    pub bearer: String,
    server: Arc<JoinHandle<()>>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        if Arc::strong_count(&self.server) == 1 {
            self.server.abort();
        }
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: HeaderMap,
    pub json: Value,
    pub bytes: Vec<u8>,
}

impl Got {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn code(&self) -> &str {
        self.json["code"].as_str().unwrap_or("")
    }

    pub fn id(&self) -> &str {
        self.json["id"].as_str().unwrap_or("")
    }
}

/// Serves a server's routes until the client is dropped.
pub async fn serve(berth: &Arc<Berth>) -> Wire {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let routes = berth::http::router(Arc::clone(berth));
    let server = Arc::new(tokio::task::spawn(async move { axum::serve(listener, routes).await.unwrap() }));
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    Wire { url, http, bearer: KEY.to_owned(), server }
}

impl Wire {
    /// The same server for somebody else.
    pub fn with(&self, bearer: &str) -> Self {
        Self { url: self.url.clone(), http: self.http.clone(), bearer: bearer.to_owned(), server: Arc::clone(&self.server) }
    }

    pub fn ask(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.bearer)
    }

    pub async fn get(&self, path: &str) -> Got {
        got(self.ask("GET", path)).await
    }

    pub async fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Got {
        let request = headers.iter().fold(self.ask("POST", path), |request, (name, value)| request.header(*name, *value));
        got(request.json(body)).await
    }
}

/// Sends a request and reads its answer to the end.
pub async fn got(request: reqwest::RequestBuilder) -> Got {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let bytes = response.bytes().await.unwrap().to_vec();
    Got { status, headers, json: serde_json::from_slice(&bytes).unwrap_or(Value::Null), bytes }
}

impl World {
    /// This world's server over HTTP.
    pub async fn serve(&self) -> Wire {
        serve(&self.berth).await
    }
}

impl World {
    /// Changes rows behind the server's back, as only a crash could have left them.
    pub async fn execute(&self, sql: &'static str) {
        // Rolls back what a dropped transaction left on the embedded database's one writing connection.
        self.berth.store.begin().await.unwrap().commit().await.unwrap();
        match self.db {
            Db::Sqlite => drop(SqliteConnection::connect(&self.url).await.unwrap().execute(sql).await.unwrap()),
            Db::Postgres => drop(PgConnection::connect(&self.url).await.unwrap().execute(sql).await.unwrap()),
        }
    }

    /// One text from the database.
    pub async fn text(&self, sql: &'static str) -> String {
        match self.db {
            Db::Sqlite => sqlx::query_scalar(sql).fetch_one(&mut SqliteConnection::connect(&self.url).await.unwrap()).await.unwrap(),
            Db::Postgres => sqlx::query_scalar(sql).fetch_one(&mut PgConnection::connect(&self.url).await.unwrap()).await.unwrap(),
        }
    }
}

/// The text of every row of a database, however it is kept.
pub async fn rows_of(url: &str) -> String {
    if let Some(path) = url.strip_prefix("sqlite:") {
        let files = [path.to_owned(), format!("{path}-wal")].map(|file| std::fs::read(file).unwrap_or_default());
        return String::from_utf8_lossy(&files.concat()).into_owned();
    }
    let rows = "SELECT string_agg(query_to_xml(format('SELECT * FROM %I', table_name), true, false, '')::text, '')
                FROM information_schema.tables WHERE table_schema = 'public'";
    sqlx::query_scalar(rows).fetch_one(&mut PgConnection::connect(url).await.unwrap()).await.unwrap()
}
