//! The list of the reward functions, and the code that is generated from it.

/// Registers kinds of reward functions, one line each: `Kind: module::Declaration`, of a type that implements
/// [`super::DeclaredReward`]. It generates the choice for manifests and the resolution from a name to the
/// function.
macro_rules! register_rewards {
    ($($kind:ident: $module:ident::$declaration:ident,)*) => {
        /// The reward functions.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum RewardKind {
            $(#[doc = concat!("Declared by `", stringify!($module), "`.")] $kind,)*
        }

        impl RewardKind {
            /// Every kind, in the order of the documentation.
            pub const ALL: [Self; [$(Self::$kind),*].len()] = [$(Self::$kind),*];

            /// Name of the function in manifests.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => <$module::$declaration as DeclaredReward>::NAME,)*
                }
            }

            /// Documentation of the function.
            pub fn doc(self) -> &'static str {
                match self {
                    $(Self::$kind => <$module::$declaration as DeclaredReward>::DOC,)*
                }
            }

            /// Settings that the function needs.
            pub fn settings(self) -> &'static [&'static Setting] {
                match self {
                    $(Self::$kind => <$module::$declaration as DeclaredReward>::SETTINGS,)*
                }
            }

            /// Sections of a manifest that the function reads.
            pub fn sections(self) -> &'static [Section] {
                match self {
                    $(Self::$kind => <$module::$declaration as DeclaredReward>::SECTIONS,)*
                }
            }

            /// Builds the function from a manifest's settings.
            ///
            /// # Errors
            /// [`RewardError`] for settings that are missing or invalid.
            pub fn build(self, given: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
                match self {
                    $(Self::$kind => <$module::$declaration as DeclaredReward>::build(given),)*
                }
            }
        }

        $crate::choice!(RewardKind, [$(<$module::$declaration as DeclaredReward>::NAME),*]);
    };
}
