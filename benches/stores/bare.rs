//! The bare client: an insert and an update by key, as an application without a store does them.

use tokio_postgres::{Client, Statement, types::ToSql};
use tower_reprise::store::Stored;

use crate::work::claim;

const TOKEN: i64 = 1_700_000_000_000_000;
const LATER: i64 = 1_800_000_000_000_000;

pub(crate) struct Bare<'a> {
    client: &'a Client,
    insert: Statement,
    update: Statement,
}

impl<'a> Bare<'a> {
    pub(crate) async fn prepare(client: &'a Client, schema: &str) -> Self {
        let insert = format!(
            "INSERT INTO {schema}.bare \
               (key, fingerprint, claim_id, token, state, orphaned, lease_until, expires, sweep_after) \
             VALUES ($1, $2, $3, $4, 0, false, $5, $5, $5)"
        );
        let update = format!(
            "UPDATE {schema}.bare SET state = 1, reply = $3, expires = $4 \
             WHERE key = $1 AND token = $2"
        );
        Self {
            client,
            insert: client.prepare(&insert).await.expect("a statement"),
            update: client.prepare(&update).await.expect("a statement"),
        }
    }

    pub(crate) async fn claim(&self, n: u64) {
        let claim = claim(n);
        let key = claim.key.as_bytes().as_slice();
        let (fingerprint, id) = (claim.fingerprint, claim.id);
        let (fingerprint, id) = (fingerprint.as_bytes().as_slice(), id.as_bytes().as_slice());
        let row: [&(dyn ToSql + Sync); 5] = [&key, &fingerprint, &id, &TOKEN, &LATER];
        let inserted = self.client.execute(&self.insert, &row).await;
        assert_eq!(inserted.expect("insert"), 1);
    }

    pub(crate) async fn complete(&self, n: u64, reply: &Stored) {
        let Stored::Reply(reply) = reply else {
            panic!("a reply is stored");
        };
        let key = claim(n).key;
        let (key, reply) = (key.as_bytes().as_slice(), &**reply);
        let row: [&(dyn ToSql + Sync); 4] = [&key, &TOKEN, &reply, &LATER];
        let updated = self.client.execute(&self.update, &row).await;
        assert_eq!(updated.expect("update"), 1);
    }
}
