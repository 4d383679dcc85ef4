//! Clients and kubeconfigs of the administrator, and of service accounts.

use std::path::PathBuf;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};

use super::{Cluster, ClusterError, write};
use crate::control_plane::ControlPlane;
use crate::fault_proxy::FaultProxy;
use crate::faults::Faults;
use crate::kubeconfig::kubeconfig;

/// Lifetime of a service account's token, in seconds.
const TOKEN_SECONDS: i64 = 24 * 3600;

impl Cluster {
    /// A new client that may do everything. It belongs to the runtime it is made in, so each test makes its
    /// own.
    ///
    /// # Errors
    /// When the kubeconfig is malformed.
    pub async fn client(&self) -> Result<kube::Client, ClusterError> {
        client_of(self.admin_kubeconfig()).await
    }

    /// A new client that is a service account and may do what its roles say. The account is made if it is
    /// missing.
    ///
    /// # Errors
    /// When the API server refuses the account or its token.
    pub async fn client_of_service_account(
        &self,
        namespace: &str,
        account: &str,
    ) -> Result<kube::Client, ClusterError> {
        client_of(self.service_account_kubeconfig(namespace, account).await?).await
    }

    /// Starts a proxy that injects `faults` into calls. It runs in the calling runtime and ends when it is
    /// dropped.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn fault_proxy(&self, faults: &Faults) -> Result<FaultProxy, ClusterError> {
        let ControlPlane { server, authority, .. } = &self.control_plane;
        let mut config = config_of(kubeconfig(server, authority, "", "default")).await?;
        // Callers bring their own, and see every failure.
        config.auth_info = AuthInfo::default();
        config.default_retry = false;
        config.read_timeout = None;
        let upstream = kube::Client::try_from(config)?;
        FaultProxy::start(upstream, faults.clone()).await.map_err(ClusterError::Proxy)
    }

    /// Returns a client of a service account, as [`Cluster::client_of_service_account`], by way of a proxy.
    ///
    /// # Errors
    /// When the API server refuses the account or its token.
    pub async fn client_through(
        &self,
        proxy: &FaultProxy,
        namespace: &str,
        account: &str,
    ) -> Result<kube::Client, ClusterError> {
        let mut kubeconfig = self.service_account_kubeconfig(namespace, account).await?;
        kubeconfig["clusters"][0]["cluster"]["server"] = proxy.url().into();
        client_of(kubeconfig).await
    }

    /// Writes a kubeconfig for a service account, for a program that runs outside of the cluster.
    ///
    /// # Errors
    /// When the API server refuses the account or its token, or the file can not be written.
    pub async fn kubeconfig_of_service_account(
        &self,
        namespace: &str,
        account: &str,
    ) -> Result<PathBuf, ClusterError> {
        let path = self.slot.folder().join(format!("{namespace}.{account}.kubeconfig"));
        write(&path, &self.service_account_kubeconfig(namespace, account).await?.to_string())?;
        Ok(path)
    }

    fn admin_kubeconfig(&self) -> serde_json::Value {
        let ControlPlane { server, authority, admin, .. } = &self.control_plane;
        kubeconfig(server, authority, &admin.token, "default")
    }

    pub(super) fn write_admin_kubeconfig(&self) -> Result<(), ClusterError> {
        write(&self.kubeconfig(), &self.admin_kubeconfig().to_string())
    }

    async fn service_account_kubeconfig(
        &self,
        namespace: &str,
        account: &str,
    ) -> Result<serde_json::Value, ClusterError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        if accounts.get_opt(account).await?.is_none() {
            let metadata = ObjectMeta { name: Some(account.to_owned()), ..ObjectMeta::default() };
            let made = ServiceAccount { metadata, ..ServiceAccount::default() };
            accounts.create(&PostParams::default(), &made).await?;
        }
        let spec =
            TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
        let token = answer.status.ok_or(ClusterError::Answer { field: "status.token" })?.token;
        Ok(kubeconfig(&self.control_plane.server, &self.control_plane.authority, &token, namespace))
    }
}

async fn client_of(kubeconfig: serde_json::Value) -> Result<kube::Client, ClusterError> {
    Ok(kube::Client::try_from(config_of(kubeconfig).await?)?)
}

async fn config_of(kubeconfig: serde_json::Value) -> Result<kube::Config, ClusterError> {
    let kubeconfig = Kubeconfig::from_yaml(&kubeconfig.to_string())?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(config)
}
