// What the workflow asks for.
import * as fs from 'node:fs'

import * as core from '@actions/core'

import { isVersion } from './release.js'

const releases = 'https://github.com/karve-k8s/karve/releases'

/** inputs returns the checked inputs. The error of a wrong one names it. */
export function inputs() {
  const version = core.getInput('version')
  if (version !== 'latest' && !isVersion(version)) {
    throw new Error(`version: ${version}: want a release such as v1.37.2+karve.1, or latest`)
  }
  const nodes = core.getInput('simulate-nodes')
  if (!/^\d+$/.test(nodes)) {
    throw new Error(`simulate-nodes: ${nodes}: want a number`)
  }
  const manifests = core.getMultilineInput('manifests')
  for (const manifest of manifests) {
    if (!/^https?:\/\//.test(manifest) && !fs.existsSync(manifest)) {
      throw new Error(`manifests: ${manifest} does not exist: check out the repository before this step, or mend the path`)
    }
  }
  const mirror = process.env.KARVE_DOWNLOAD_URL
  const secrets = mirror ? secretsOf(mirror) : []
  return {
    version,
    nodes,
    manifests,
    args: core.getMultilineInput('args'),
    secrets,
    urlOf: release => mirror || `${releases}/${release === 'latest' ? 'latest/download' : `download/${encodeURIComponent(release)}`}`,
  }
}

/** secretsOf returns what the log must not have of the address of a mirror. */
function secretsOf(mirror) {
  const url = URL.canParse(mirror) ? new URL(mirror) : {}
  if (url.protocol !== 'https:' && url.protocol !== 'http:') {
    // The value may have a password.
    throw new Error('KARVE_DOWNLOAD_URL is no address of a release: want one such as https://mirror.example/karve/v1.37.2+karve.1')
  }
  if (!url.username && !url.password && !url.search) {
    return []
  }
  try {
    // The user may be a token, with any password.
    return [mirror, url.search, url.username, url.password].flatMap(text => [text, decodeURIComponent(text)]).filter(Boolean)
  } catch {
    throw new Error('KARVE_DOWNLOAD_URL has a percent sign before something that is no code of a character: write %25 for the sign itself')
  }
}
