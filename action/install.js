// The program of a release, from the runner, from the cache or from the web.
import * as fs from 'node:fs'
import * as path from 'node:path'
import * as zlib from 'node:zlib'

import * as cache from '@actions/cache'
import * as core from '@actions/core'

import { download, shown } from './download.js'
import { asset, checked, files, read, signedVersion } from './release.js'

// A program has about 30 MB, and its list of checksums some kB.
const limits = { [asset()]: 256 << 20 }
const listLimit = 1 << 20

/** newest returns the version of the release at an address, as its signature names it. */
export async function newest(url, keys) {
  const sums = await download(url, 'SHA256SUMS', listLimit)
  const signature = await download(url, 'SHA256SUMS.minisig', listLimit)
  return from(shown(url), () => signedVersion(sums, signature, keys))
}

/** from names the place of what is wrong. */
function from(place, check) {
  try {
    return check()
  } catch (error) {
    throw new Error(`${place}: ${error.message}. Nothing of it was used`)
  }
}

/**
 * install puts karve, and kubectl if there is none, into a directory. What the runner and the cache keep is
 * the release as it was downloaded. Others can write to both, so its signature, version and checksum are checked each time.
 */
export async function install(version, url, keys, directory) {
  const packed = await obtain(version, url, keys)
  fs.mkdirSync(directory)
  fs.writeFileSync(path.join(directory, 'karve'), zlib.gunzipSync(packed), { mode: 0o755 })
  if (!(process.env.PATH || '').split(path.delimiter).some(place => place && fs.existsSync(path.join(place, 'kubectl')))) {
    fs.symlinkSync('karve', path.join(directory, 'kubectl'))
  }
}

/** obtain returns the compressed program, which has been checked. */
async function obtain(version, url, keys) {
  // The cache finds a directory only by the same path.
  const kept = path.join(process.env.RUNNER_TOOL_CACHE, 'karve', version, process.arch)
  const key = `${asset()}-${version}`
  const usable = place => {
    try {
      const packed = checked(read(kept), version, keys)
      core.info(`karve ${version} ${place}`)
      return packed
    } catch (error) {
      core.warning(`what ${place} is not karve ${version}: ${error.message}. It is downloaded again`)
      fs.rmSync(kept, { recursive: true, force: true })
    }
  }
  let packed
  if (fs.existsSync(kept)) { // an earlier job of this runner
    packed = usable(`is in ${kept}`)
  }
  if (!packed && cache.isFeatureAvailable() && (await cache.restoreCache([kept], key))) {
    packed = usable('was in the cache')
  }
  if (packed) {
    return packed
  }

  core.info(`downloading karve ${version} from ${shown(url)}`)
  const content = {}
  for (const name of ['SHA256SUMS.minisig', 'SHA256SUMS', asset()]) {
    content[name] = await download(url, name, limits[name] || listLimit)
  }
  packed = from(shown(url), () => checked(content, version, keys))
  fs.mkdirSync(path.dirname(kept), { recursive: true })
  const partial = fs.mkdtempSync(`${kept}-`)
  for (const name of files) {
    fs.writeFileSync(path.join(partial, name), content[name])
  }
  try {
    fs.renameSync(partial, kept)
  } catch (error) { // another job of this runner was faster
    fs.rmSync(partial, { recursive: true })
    core.info(`karve was not put into ${kept}: ${error.message}`)
    return packed
  }
  if (cache.isFeatureAvailable()) {
    try {
      await cache.saveCache([kept], key)
    } catch (error) { // another job of the same run may save it at the same time
      core.info(`karve was not put into the cache: ${error.message}`)
    }
  }
  return packed
}
