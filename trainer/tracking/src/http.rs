//! HTTP requests to servers that a user names. No redirect is followed, so that credentials and records reach
//! only the named origin, and the size and the time of an answer are limited.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use reqwest::blocking::{Client, ClientBuilder, Response};
use reqwest::redirect::Policy;

/// Maximum size of an answer in bytes, far above the needs of any tracking server.
pub const MAX_ANSWER_BYTES: u64 = 8 << 20;

/// Creates the builder of a client that follows no redirects.
pub fn client(connect_timeout: Duration) -> ClientBuilder {
    Client::builder().redirect(Policy::none()).connect_timeout(connect_timeout)
}

/// Returns an address without its user and password, to be shown.
pub fn without_password(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// Reads the text of an answer.
///
/// # Errors
/// When the answer has more than [`MAX_ANSWER_BYTES`], takes longer than `timeout`, or ends early.
pub fn text_of(answer: Response, timeout: Duration) -> io::Result<String> {
    read_text(answer, MAX_ANSWER_BYTES, timeout)
}

/// Reads the text of an answer that may be longer than those of tracking servers.
///
/// # Errors
/// As [`text_of`], with `max_bytes` as the limit.
pub fn text_within(answer: Response, max_bytes: u64, timeout: Duration) -> io::Result<String> {
    read_text(answer, max_bytes, timeout)
}

fn read_text(mut answer: impl Read, max_bytes: u64, timeout: Duration) -> io::Result<String> {
    let deadline = Instant::now() + timeout;
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let num_read = answer.read(&mut buffer)?;
        if num_read == 0 {
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        bytes.extend_from_slice(&buffer[..num_read]);
        if bytes.len() as u64 > max_bytes {
            let limit = max_bytes >> 10;
            return Err(io::Error::other(format!("the answer is longer than {limit} KiB")));
        }
        if Instant::now() > deadline {
            let seconds = timeout.as_secs();
            return Err(io::Error::other(format!("the answer takes longer than {seconds} s")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password() {
        for (address, shown) in [
            ("https://user:pass-word@host:8443/a@b?c", "https://host:8443/a@b?c"),
            ("s3://key:pass-word@bucket", "s3://bucket"),
            ("https://a@b:pass-word@host?x=@", "https://host?x=@"),
            ("file:///folder/a@b", "file:///folder/a@b"),
            ("az://container/prefix", "az://container/prefix"),
            ("no address", "no address"),
        ] {
            assert_eq!(without_password(address), shown);
        }
    }

    #[test]
    fn an_answer_without_end_is_given_up() {
        let read = |bytes: &mut dyn Read| read_text(bytes, 1 << 10, Duration::from_secs(60));
        assert_eq!(read(&mut &b"short"[..]).unwrap(), "short");
        assert_eq!(read(&mut io::repeat(b'a').take(1 << 10)).unwrap().len(), 1 << 10);
        let error = read(&mut io::repeat(b'a')).unwrap_err();
        assert_eq!(error.to_string(), "the answer is longer than 1 KiB");
        let error = read_text(io::repeat(b'a'), u64::MAX, Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "the answer takes longer than 0 s");
    }
}
