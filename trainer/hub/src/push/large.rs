//! Uploads large files by the protocol of Git LFS: the hub returns an upload URL for each, for all of it or
//! for its parts, and none for files that it already has.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use reqwest::blocking::Body;
use reqwest::header::{ACCEPT, CONTENT_TYPE, ETAG};
use serde_json::{Value, json};

use super::{BRANCH, Hub, PushError, Repository, Upload, answered, bad_answer, headers_of, json_of, unread};

/// The protocol's media type.
const LFS: &str = "application/vnd.git-lfs+json";

impl Hub {
    /// Uploads large files to the URLs that the hub returns.
    pub(super) fn upload_large(&self, repository: &Repository, files: &[&Upload]) -> Result<(), PushError> {
        if files.is_empty() {
            return Ok(());
        }
        let act = format!("asking where large files of {repository} go");
        let objects: Vec<Value> =
            files.iter().map(|file| json!({"oid": file.digest, "size": file.num_bytes})).collect();
        let body = json!({
            "operation": "upload",
            "transfers": ["basic", "multipart"],
            "objects": objects,
            "hash_algo": "sha256",
            "ref": {"name": BRANCH},
        });
        let request = self.post(&format!("{repository}.git/info/lfs/objects/batch"));
        let request = request.header(ACCEPT, LFS).header(CONTENT_TYPE, LFS).body(body.to_string());
        let answer = json_of(&act, answered(&act, request)?)?;
        for file in files {
            let of_file = |object: &&Value| object["oid"] == *file.digest;
            let object = answer["objects"].as_array().and_then(|objects| objects.iter().find(of_file));
            let object = object.ok_or_else(|| bad_answer(&act, "each object", &answer.to_string()))?;
            if object.get("error").is_some() {
                return Err(bad_answer(&act, "a place for each file", &object["error"].to_string()));
            }
            self.upload(file, &object["actions"])?;
        }
        Ok(())
    }

    /// Uploads a file to the URL in `actions`; there is none if the hub has the file already.
    fn upload(&self, file: &Upload, actions: &Value) -> Result<(), PushError> {
        let act = format!("uploading {}", file.name);
        let upload = &actions["upload"];
        let Some(url) = upload["href"].as_str() else { return Ok(()) };
        match upload["header"].get("chunk_size") {
            None => {
                let whole = part_of(file, 0, file.num_bytes)?;
                answered(&act, self.client.put(url).headers(headers_of(upload)).body(whole))?;
            }
            Some(part_bytes) => self.upload_parts(file, upload, url, part_bytes)?,
        }
        let Some(url) = actions["verify"]["href"].as_str() else { return Ok(()) };
        let act = format!("verifying {}", file.name);
        let body = json!({"oid": file.digest, "size": file.num_bytes}).to_string();
        let request = self.post_to(url).headers(headers_of(&actions["verify"]));
        answered(&act, request.header(ACCEPT, LFS).header(CONTENT_TYPE, LFS).body(body)).map(drop)
    }

    /// Uploads a file in parts. The header of `upload` has the URL of each part by its number; `url` joins
    /// them.
    fn upload_parts(
        &self,
        file: &Upload,
        upload: &Value,
        url: &str,
        part_bytes: &Value,
    ) -> Result<(), PushError> {
        let act = format!("uploading {} in parts", file.name);
        let num_bytes =
            part_bytes.as_u64().or_else(|| part_bytes.as_str()?.parse().ok()).filter(|bytes| *bytes > 0);
        let num_bytes =
            num_bytes.ok_or_else(|| bad_answer(&act, "a chunk_size above 0", &part_bytes.to_string()))?;
        let numbered = upload["header"].as_object().into_iter().flatten();
        let numbered =
            numbered.filter_map(|(number, url)| Some((number.parse::<u64>().ok()?, url.as_str()?)));
        let mut places: Vec<(u64, &str)> = numbered.collect();
        places.sort_unstable();
        if places.len() as u64 != file.num_bytes.div_ceil(num_bytes) {
            let got = format!("{} addresses for parts of {num_bytes} bytes", places.len());
            return Err(bad_answer(&act, "an address for each part", &got));
        }
        let mut parts = Vec::new();
        for (index, (_, place)) in (0u64..).zip(&places) {
            let part = part_of(file, index * num_bytes, num_bytes.min(file.num_bytes - index * num_bytes))?;
            let answer = answered(&act, self.client.put(*place).body(part))?;
            let etag = answer.headers().get(ETAG).and_then(|etag| etag.to_str().ok());
            let etag = etag.ok_or_else(|| bad_answer(&act, "an ETag", "none"))?;
            parts.push(json!({"partNumber": index + 1, "etag": etag}));
        }
        let body = json!({"oid": file.digest, "parts": parts}).to_string();
        let request = self.post_to(url).header(ACCEPT, LFS).header(CONTENT_TYPE, LFS).body(body);
        answered(&act, request).map(drop)
    }
}

/// A request body of `num_bytes` of a file from `start` on, read while it is sent.
fn part_of(file: &Upload, start: u64, num_bytes: u64) -> Result<Body, PushError> {
    let mut content = File::open(&file.path).map_err(unread(&file.path))?;
    content.seek(SeekFrom::Start(start)).map_err(unread(&file.path))?;
    Ok(Body::sized(content.take(num_bytes), num_bytes))
}
