//! PgBouncer in front of a server of PostgreSQL.

use std::{
    net::{Ipv4Addr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use super::{
    database::{Folder, eventually, program},
    ports::free_port,
    postgres::is_root,
};

/// A pooler in transaction mode, with fewer connections to the server than its clients have to it.
pub(crate) struct PgBouncer {
    process: Child,
    port: u16,
    _folder: Folder,
}

impl PgBouncer {
    pub(crate) async fn start(server: &tokio_postgres::Config, connections: u32) -> Self {
        let program = pgbouncer().expect("PgBouncer");
        let (folder, port) = (Folder::new(), free_port());
        let tokio_postgres::config::Host::Tcp(host) = &server.get_hosts()[0] else {
            panic!("a server at an address");
        };
        let user = server.get_user().expect("a user");
        let settings = format!(
            "[databases]\n\
             * = host={host} port={} user={user}\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {port}\n\
             unix_socket_dir =\n\
             auth_type = any\n\
             pool_mode = transaction\n\
             default_pool_size = {connections}\n\
             max_client_conn = 500\n\
             ignore_startup_parameters = extra_float_digits\n",
            server.get_ports()[0]
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).expect("a file");
        let mut command = Command::new(program);
        command
            .arg("-q")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if is_root() {
            // It refuses to run as root.
            command.args(["-u", "nobody"]);
        }
        let process = command.arg(&file).spawn().expect("a process");
        let listens = async || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        eventually("it listens", listens).await;
        Self {
            process,
            port,
            _folder: folder,
        }
    }

    pub(crate) fn url(&self, server: &tokio_postgres::Config) -> String {
        let (user, database) = (server.get_user(), server.get_dbname());
        let (user, database) = (user.expect("a user"), database.expect("a database"));
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn pgbouncer() -> Option<PathBuf> {
    let usual = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"];
    program("REPRISE_TEST_PGBOUNCER", &usual)
}
