//! PostgreSQL servers that a test starts for itself, and can stop.

use std::{path::PathBuf, process::Command};

use super::{
    database::{Folder, Restart, eventually, program, run},
    ports::free_port,
};

/// A server of the test's own. Root may not run one, so that it is somebody else's then.
pub(crate) struct Own {
    bin: PathBuf,
    pub(crate) folder: Folder,
    pub(crate) port: u16,
}

impl Own {
    /// `None` if there is no program.
    pub(crate) async fn new() -> Option<Self> {
        let mut server = Self {
            bin: postgres_bin()?,
            folder: Folder::new(),
            port: free_port(),
        };
        if is_root() {
            run(Command::new("chown")
                .arg("postgres")
                .arg(server.folder.path()));
        }
        let arguments = "-U reprise -A trust -E UTF8 --locale=C --no-sync";
        run(server.command("initdb").args(arguments.split(' ')));
        server.start().await;
        Some(server)
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let program = self.bin.join(program);
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        let data = self.folder.path().join("data");
        command.current_dir("/").arg("-D").arg(data);
        command
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://reprise@127.0.0.1:{}/postgres", self.port)
    }
}

pub(crate) fn is_root() -> bool {
    run(Command::new("id").arg("-u")).stdout == b"0\n"
}

pub(crate) fn postgres_bin() -> Option<PathBuf> {
    let debian = (12..30)
        .rev()
        .map(|version| format!("/usr/lib/postgresql/{version}/bin"));
    let debian: Vec<String> = debian.collect();
    let usual: Vec<&str> = debian.iter().map(String::as_str).collect();
    program("REPRISE_TEST_POSTGRES_BIN", &usual)
}

impl Restart for Own {
    /// As if it had crashed: nothing is written any more, and the log is worked through later.
    async fn stop(&mut self) {
        run(self
            .command("pg_ctl")
            .args(["-m", "immediate", "-s", "stop"]));
    }

    async fn shut_down(&mut self) {
        run(self.command("pg_ctl").args(["-m", "fast", "-s", "stop"]));
    }

    /// Those that it started end when they notice.
    async fn kill(&mut self) {
        let pid = self.folder.path().join("data/postmaster.pid");
        let pid = std::fs::read_to_string(pid).expect("a server that runs");
        let pid = pid.lines().next().expect("its number");
        run(Command::new("kill").args(["-9", pid]));
    }

    async fn start(&mut self) {
        let log = self.folder.path().join("log");
        let settings = format!("-h 127.0.0.1 -p {} -c unix_socket_directories=", self.port);
        let mut command = self.command("pg_ctl");
        command
            .args(["-w", "-s", "-o", &settings, "-l"])
            .arg(log)
            .arg("start");
        // Not while a session of a server that was killed is there.
        let started = async || command.output().is_ok_and(|output| output.status.success());
        eventually("it starts", started).await;
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self
            .command("pg_ctl")
            .args(["-m", "immediate", "-s", "stop"])
            .output();
    }
}
