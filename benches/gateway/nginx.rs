//! nginx as the same proxy: kept connections both ways, no log, a worker for each core.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

/// An nginx, which is ended when dropped.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) url: String,
}

impl Nginx {
    /// Starts one in front of an upstream; `None` if there is none on this machine.
    pub(crate) fn start(upstream: &str, folder: &Path) -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .unwrap();
        let upstream = upstream.trim_start_matches("http://");
        let folder = folder.display();
        let config = format!(
            "daemon off; worker_processes auto; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\n\
               access_log off; keepalive_requests 1000000000;\n\
               client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;\n\
               uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;\n\
               upstream service {{ server {upstream}; keepalive 64; keepalive_requests 1000000000; }}\n\
               server {{\n\
                 listen {address};\n\
                 location / {{\n\
                   proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection \"\";\n\
                   proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Request-Id $request_id;\n\
                 }}\n\
               }}\n\
             }}\n"
        );
        let path = format!("{folder}/nginx.conf");
        fs::write(&path, config).unwrap();
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let sbin = ["/usr/sbin".into()];
        let program = std::env::split_paths(&paths)
            .chain(sbin)
            .map(|path| path.join("nginx"))
            .find(|program| program.exists())?;
        let child = Command::new(program)
            .args(["-c", &path])
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut nginx = Self {
            child,
            url: format!("http://{address}"),
        };
        while TcpStream::connect(address).is_err() {
            let ended = nginx.child.try_wait().unwrap();
            assert!(ended.is_none(), "nginx ended: see {folder}/nginx.log");
            sleep(Duration::from_millis(20));
        }
        Some(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its workers end with it, unless it is killed.
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-QUIT", &pid]).status();
        let _ = self.child.wait();
    }
}
