//! The trainer that a command starts: its project and settings.

use std::collections::BTreeMap;

use crate::cluster::job::ClusterJob;
use crate::settings::{Settings, SettingsError};
use crate::shell::Evaluation;

/// Project to which a trainer belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Project {
    /// verl, whose settings are Hydra overrides.
    Verl,
    /// TRL, whose settings are flags or a YAML file.
    Trl,
    /// open-instruct, whose settings are flags.
    OpenInstruct,
}

impl Project {
    /// Whether a name is that of a trainer of the project.
    pub fn has_trainer(self, name: &str) -> bool {
        match self {
            Self::Verl => {
                let samples =
                    ["main_ppo", "main_dapo", "fully_async"].iter().any(|own| name.starts_with(own));
                samples || name.contains("sft")
            }
            Self::Trl => is_trl_trainer(name),
            Self::OpenInstruct => OPEN_INSTRUCT.iter().any(|own| name.starts_with(own)),
        }
    }

    /// Name of the project, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Verl => "verl",
            Self::Trl => "TRL",
            Self::OpenInstruct => "open-instruct",
        }
    }
}

/// A start of a trainer by a command.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Project of the trainer.
    pub project: Project,
    /// Name of the trainer: `main_ppo`, `sft_trainer`, `grpo`, ..
    pub trainer: String,
    /// Arguments of the trainer, without settings files.
    pub arguments: Vec<String>,
    /// Paths of the settings files that the arguments name.
    pub files: Vec<String>,
    /// Name of the Hydra settings file that verl's arguments select, if it is not one of verl's own.
    pub config_name: Option<String>,
    /// Texts of those settings files that the script writes itself, by path.
    pub texts: BTreeMap<String, String>,
    /// Number of processes, if the launcher gives it (`torchrun`, `accelerate launch`): of each machine for
    /// verl, of all machines for the other projects.
    pub processes: Option<u64>,
    /// Number of machines, if the launcher gives it.
    pub machines: Option<u64>,
    /// Job of another operator whose command this is.
    pub cluster: Option<ClusterJob>,
}

impl Launch {
    /// Recognises the trainer that a command starts; `None` if there is no known one.
    pub fn of(words: &[String]) -> Option<Self> {
        Self::on(words, None)
    }

    /// Recognises the trainer that a command starts on this number of machines, unless the launcher gives it.
    pub(crate) fn on(words: &[String], machines: Option<u64>) -> Option<Self> {
        let (index, project, trainer) = words.iter().enumerate().find_map(|(index, word)| {
            let before = index.checked_sub(1).and_then(|before| words.get(before));
            let (project, trainer) = trainer(word, before.map(String::as_str))?;
            Some((index, project, trainer))
        })?;
        let launcher = &words[..index];
        let option = |names: &[&str]| option(launcher, names);
        let mut launch = Self {
            project,
            trainer,
            arguments: Vec::new(),
            files: Vec::new(),
            config_name: None,
            texts: BTreeMap::new(),
            processes: None,
            machines: option(&["nnodes", "num_machines", "num_nodes"]).or(machines),
            cluster: None,
        };
        let machines = launch.machines.unwrap_or(1).max(1);
        // torchrun counts the processes of a machine, accelerate those of all.
        let (of_machine, of_all) = (option(&["nproc_per_node", "num_gpus"]), option(&["num_processes"]));
        launch.processes = match project {
            Project::Verl => of_machine.or(of_all.map(|all| all / machines)),
            Project::Trl | Project::OpenInstruct => {
                of_all.or(of_machine.map(|count: u64| count.saturating_mul(machines)))
            }
        };
        launch.take(&words[index + 1..]);
        Some(launch)
    }

    /// Returns the launches among the commands of a script, on this number of machines unless they give
    /// another.
    pub(crate) fn all_in(evaluation: &Evaluation, machines: Option<u64>) -> Vec<Self> {
        let launches = evaluation.commands.iter().filter_map(|words| Self::on(words, machines));
        let mut launches: Vec<_> = launches.collect();
        for launch in &mut launches {
            let written = |path: &String| evaluation.files.get(path.trim_start_matches("./")).cloned();
            let texts = launch.files.iter().filter_map(|path| Some((path.clone(), written(path)?)));
            launch.texts = texts.collect();
        }
        launches
    }

    /// Makes a launch from settings alone, for a project that the user names.
    pub fn new(project: Project, trainer: &str, arguments: &[String]) -> Self {
        let trainer = trainer.to_owned();
        let mut launch = Self {
            project,
            trainer,
            arguments: Vec::new(),
            files: Vec::new(),
            config_name: None,
            texts: BTreeMap::new(),
            processes: None,
            machines: None,
            cluster: None,
        };
        launch.take(arguments);
        launch
    }

    pub(crate) fn take(&mut self, arguments: &[String]) {
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if self.project == Project::Verl && argument.starts_with('-') {
                self.take_hydra(argument, &mut rest);
                continue;
            }
            let is_file = self.project != Project::Verl && argument == "--config";
            let named = argument.strip_prefix("--config=").filter(|_| self.project != Project::Verl);
            match rest.clone().next() {
                _ if named.is_some() => self.files.extend(named.map(str::to_owned)),
                Some(file) if is_file => {
                    self.files.push(file.clone());
                    rest.next();
                }
                _ if self.project == Project::OpenInstruct && argument.ends_with(".yaml") => {
                    self.files.push(argument.clone());
                }
                _ => self.arguments.push(argument.clone()),
            }
        }
    }

    /// Consumes one of Hydra's own options and its value. Except for the name of a settings file, they have
    /// no effect on the manifest.
    fn take_hydra<'a>(&mut self, option: &str, rest: &mut impl Iterator<Item = &'a String>) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, HYDRA.contains(&option).then(|| rest.next()).flatten().map(String::as_str)),
        };
        if matches!(name, "--config-name" | "-cn") {
            // verl's own files, such as ppo_megatron_trainer, hold its defaults.
            self.config_name = value.filter(|name| !name.contains("trainer")).map(str::to_owned);
        }
    }

    /// Returns all settings: those of the files, overridden by the arguments.
    pub(crate) fn settings(&self, files: &[String]) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        for file in files {
            settings.add_yaml(file)?;
        }
        let computed = settings.computed();
        match self.project {
            Project::Verl => settings.add_overrides(&self.arguments)?,
            Project::Trl | Project::OpenInstruct => settings.add_flags(&self.arguments)?,
        }
        settings.resolve();
        // If a settings file computes a value from absent settings, the value is verl's default.
        settings.remove_computed(&computed);
        Ok(settings)
    }
}

/// Options of Hydra that have a value.
const HYDRA: [&str; 10] =
    ["--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd", "--cfg", "-c", "--package", "-p"];
/// Prefixes of the names of open-instruct's trainers, which distinguish them from its other programs.
const OPEN_INSTRUCT: [&str; 6] = ["grpo", "ppo", "finetune", "olmo_core_finetune", "dpo", "reward_modeling"];
/// Scripts of open-instruct that submit a job, with the trainer that each starts.
const SUBMITTED: [(&str, &str); 2] =
    [("submit_finetune_job", "finetune"), ("submit_dpo_job", "dpo_tune_cache")];

/// Recognises a trainer by one word of a command and the word before it.
fn trainer(word: &str, before: Option<&str>) -> Option<(Project, String)> {
    let module = word.strip_suffix(".py").unwrap_or(word).replace('/', ".");
    let last = module.rsplit('.').next()?.to_owned();
    if is_verl_trainer(word, &module, &last) {
        return Some((Project::Verl, last));
    }
    if module.contains("open_instruct.") && OPEN_INSTRUCT.iter().any(|own| last.starts_with(own)) {
        return Some((Project::OpenInstruct, last));
    }
    if let Some((_, trainer)) = SUBMITTED.iter().find(|(script, _)| last == *script) {
        return Some((Project::OpenInstruct, (*trainer).to_owned()));
    }
    let is_command = before.is_some_and(|before| before == "trl" || before.ends_with("/trl"));
    let is_module = before.is_some_and(|before| matches!(before, "-m" | "--module"));
    let is_own = (is_module && module.starts_with("trl."))
        || (word.ends_with(".py") && is_trl_script(&module, last.trim_start_matches("run_")));
    let name = last.trim_start_matches("run_");
    if is_trl_trainer(name) && (is_command || is_own) {
        return Some((Project::Trl, name.to_owned()));
    }
    None
}

/// Whether a word names a trainer of verl by its module or its file. Other programs and files of verl are not
/// trainers, such as `--runtime-env=verl/trainer/runtime_env.yaml` of `ray job submit`.
fn is_verl_trainer(word: &str, module: &str, last: &str) -> bool {
    let is_program = !word.starts_with('-') && !word.contains('=');
    if !is_program || (word.contains('/') && !word.ends_with(".py")) {
        return false;
    }
    let is_in = |package: &str| module.starts_with(package) || module.contains(&format!(".{package}"));
    let trains = !["eval", "generation"].iter().any(|other| last.contains(other));
    // The recipe of DAPO has the settings of main_ppo. Other recipes have their own losses.
    (trains && (is_in("verl.trainer.") || is_in("verl.experimental."))) || is_in("recipe.dapo.main_dapo")
}

/// Whether a name is that of a trainer of TRL, such as `grpo` or `dpo_vlm`.
fn is_trl_trainer(name: &str) -> bool {
    const TRAINERS: [&str; 16] = [
        "gmpo",
        "sft",
        "dpo",
        "grpo",
        "gspo",
        "kto",
        "cpo",
        "orpo",
        "ppo",
        "rloo",
        "mpo",
        "online_dpo",
        "dpo_online",
        "reward",
        "reward_modeling",
        "prm",
    ];
    TRAINERS.iter().any(|trainer| name == *trainer || name.starts_with(&format!("{trainer}_")))
}

/// Whether a module is one of TRL's own scripts: `trl/scripts/grpo.py`, `examples/scripts/dpo_vlm.py`.
fn is_trl_script(module: &str, name: &str) -> bool {
    module.contains("trl") || module.contains("scripts.") || module == name
}

/// Returns the number given by an option of a launcher, `--name 8` or `--name=8`.
fn option(words: &[String], names: &[&str]) -> Option<u64> {
    words.iter().enumerate().find_map(|(index, word)| {
        let flag = word.strip_prefix("--")?;
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (flag, words.get(index + 1).map(String::as_str)),
        };
        names.contains(&name.replace('-', "_").as_str()).then(|| value?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(text: &str) -> Option<Launch> {
        Launch::of(&text.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn trainers_are_known_by_name() {
        let known = [
            (Project::Verl, "main_ppo"),
            (Project::Verl, "fsdp_sft_trainer"),
            (Project::Trl, "dpo_vlm"),
            (Project::OpenInstruct, "dpo_tune_cache"),
        ];
        assert!(known.iter().all(|(project, name)| project.has_trainer(name)));
        for project in [Project::Verl, Project::Trl, Project::OpenInstruct] {
            assert!(["", "grppo", "SFT", "distill"].iter().all(|name| !project.has_trainer(name)));
        }
    }

    #[test]
    fn a_command_names_the_trainer_that_it_starts() {
        let verl =
            launch("uv run --extra vllm python3 -m verl.trainer.main_ppo --config-path=x a=1").unwrap();
        assert_eq!((verl.project, verl.trainer.as_str()), (Project::Verl, "main_ppo"));
        assert_eq!(verl.arguments, ["a=1"]);
        let sft = launch("torchrun --nnodes=2 --nproc_per_node 8 -m verl.trainer.sft_trainer a=1").unwrap();
        assert_eq!((sft.machines, sft.processes), (Some(2), Some(8)));
        let trl =
            launch("accelerate launch --num_processes 4 examples/scripts/dpo_vlm.py --config c.yaml --bf16")
                .unwrap();
        assert_eq!((trl.project, trl.trainer.as_str(), trl.processes), (Project::Trl, "dpo_vlm", Some(4)));
        assert_eq!(
            (trl.files.as_slice(), trl.arguments.as_slice()),
            (&["c.yaml".to_owned()][..], &["--bf16".to_owned()][..])
        );
        assert_eq!(launch("trl grpo --beta 0").map(|launch| launch.trainer).as_deref(), Some("grpo"));
        let module =
            launch("accelerate launch --num_machines 2 -m trl.scripts.grpo --config=c.yaml").unwrap();
        assert_eq!((module.trainer.as_str(), module.machines), ("grpo", Some(2)));
        assert_eq!(module.files, ["c.yaml"]);
        assert!(launch("python -m mine.grpo --beta 0").is_none());
        let spread = launch("torchrun --nnodes 2 --nproc-per-node=8 trl/scripts/sft.py").unwrap();
        assert_eq!((spread.machines, spread.processes), (Some(2), Some(16)));
        let tulu = launch("python open_instruct/grpo_fast.py --beta 0").unwrap();
        assert_eq!((tulu.project, tulu.trainer.as_str()), (Project::OpenInstruct, "grpo_fast"));
        let submitted =
            launch("python scripts/submit_finetune_job.py --config=configs/a.yaml --seed 1").unwrap();
        assert_eq!((submitted.project, submitted.trainer.as_str()), (Project::OpenInstruct, "finetune"));
        assert_eq!(submitted.files, ["configs/a.yaml"]);
        let submitted =
            "ray job submit --runtime-env=/a/verl/trainer/runtime_env.yaml --no-wait -- python3 -m";
        for module in ["verl.trainer.main_ppo", "recipe.dapo.main_dapo"] {
            let verl = launch(&format!("{submitted} {module} --config-name=dapo_trainer a=1")).unwrap();
            assert_eq!((verl.project, verl.arguments.as_slice()), (Project::Verl, &["a=1".to_owned()][..]));
        }
        for option in ["--config-name=mine", "--config-path /a --config-name mine", "-cn mine"] {
            let verl = launch(&format!("python3 -m verl.trainer.main_ppo {option} a=1")).unwrap();
            assert_eq!((verl.config_name.as_deref(), verl.arguments.len()), (Some("mine"), 1), "{option}");
        }
        let verl = launch("env PYTHONPATH=/a/verl/:/b python3 /a/verl/verl/trainer/main_ppo.py a=1").unwrap();
        assert_eq!(verl.trainer, "main_ppo");
        assert!(launch("python3 /a/verl/examples/data_preprocess/gsm8k.py --local_dir b").is_none());
        assert!(launch("cp /a/verl/trainer/b.parquet c").is_none());
        assert!(launch("python3 -m verl.model_merger merge --backend fsdp").is_none());
        assert!(launch("python3 -m verl.trainer.main_generation_server a=1").is_none());
        assert!(launch("python3 -m verl.trainer.main_eval data.path=a").is_none());
        assert!(launch("pytest open_instruct/test_grpo_fast_gpu.py").is_none());
        assert!(launch("python open_instruct/merge_lora.py --beta 0").is_none());
        assert!(launch("python train.py --beta 0").is_none());
        assert!(launch("pip install trl").is_none());
        assert!(launch("trl vllm-serve --model a/b").is_none());
    }
}
