//! The manifests that a command reads: paths after the command, or after `-f` as for kubectl.

use std::path::{Path, PathBuf};

use crate::manifest::STANDARD_INPUT;

/// Manifest of a command that reads one.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ManifestArgs {
    /// Manifest of the job; - for standard input.
    #[arg(value_name = "MANIFEST")]
    manifest: Option<PathBuf>,
    /// Manifest of the job, named as for kubectl apply.
    #[arg(long, short, value_name = "MANIFEST")]
    file: Option<PathBuf>,
}

impl ManifestArgs {
    /// Returns the path of the manifest.
    pub(crate) fn path(&self) -> &Path {
        // The parser has required one of both.
        self.manifest.as_deref().or(self.file.as_deref()).unwrap_or(Path::new(STANDARD_INPUT))
    }
}

/// Manifests of a command that reads several.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct ManifestsArgs {
    /// Manifests of jobs; - for standard input.
    #[arg(value_name = "MANIFEST")]
    manifests: Vec<PathBuf>,
    /// Manifests of jobs, named as for kubectl apply.
    #[arg(long = "file", short, value_name = "MANIFEST", num_args = 1..)]
    files: Vec<PathBuf>,
}

impl ManifestsArgs {
    /// Iterates over the paths of the manifests.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.manifests.iter().chain(&self.files).map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::args::{Args, Command};

    fn paths(line: &str) -> Vec<String> {
        let of = |path: &std::path::Path| path.display().to_string();
        match Args::try_parse_from(line.split(' ')).unwrap().command {
            Command::Run(args) => vec![of(args.manifest.path())],
            Command::Plan(args) => vec![of(args.manifest.path())],
            Command::Data(args) => vec![of(args.manifest.path())],
            Command::Validate(args) => args.manifests.paths().map(of).collect(),
            other => panic!("{other:?} reads no manifest"),
        }
    }

    #[test]
    fn every_command_that_reads_a_manifest_takes_its_path_with_and_without_a_flag() {
        for command in ["run", "plan", "data", "validate"] {
            for arguments in ["job.yaml", "-f job.yaml", "--file job.yaml", "--file=job.yaml"] {
                assert_eq!(paths(&format!("rlctl {command} {arguments}")), ["job.yaml"]);
            }
            assert_eq!(paths(&format!("rlctl {command} -")), ["-"]);
            let refused = Args::try_parse_from(["rlctl", command]).unwrap_err().to_string();
            assert!(refused.contains("MANIFEST"), "{refused}");
        }
        assert_eq!(paths("rlctl validate a.yaml b.yaml"), ["a.yaml", "b.yaml"]);
        assert_eq!(paths("rlctl validate -f a.yaml b.yaml"), ["a.yaml", "b.yaml"]);
        assert_eq!(paths("rlctl validate a.yaml -f b.yaml"), ["a.yaml", "b.yaml"]);
    }

    #[test]
    fn two_manifests_for_one_job_are_refused() {
        for line in ["rlctl plan a.yaml -f b.yaml", "rlctl run a.yaml b.yaml"] {
            assert!(Args::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
