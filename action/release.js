// What a release of Karve is, and whether files are one: only with node's own modules.
import * as crypto from 'node:crypto'
import * as fs from 'node:fs'
import * as path from 'node:path'

/** isVersion tells whether a text is the version of a release. It is also a safe name of a directory. */
export function isVersion(text) {
  return /^v\d+\.\d+\.\d+\+karve\.\d+$/.test(text)
}

/** asset is the name of a machine's program in a release. */
export function asset(platform = process.platform, arch = process.arch) {
  const name = { x64: 'amd64', arm: 'armv6' }[arch] || arch // armv6 runs on ARMv7 too
  return `karve-${platform}-${name}.gz`
}

/** files are those of a release that a machine needs. The signature is of SHA256SUMS. */
export const files = [asset(), 'SHA256SUMS', 'SHA256SUMS.minisig']

/**
 * signedVersion returns the version that the signature of SHA256SUMS names. It throws an error if the signature is
 * not valid by one of the keys. Signature and key are minisign's, without its prehashing: both begin with "Ed" and
 * the number of the key. The second signature, of the first one and the comment, protects the comment.
 */
export function signedVersion(sums, signature, keys) {
  const [, first, comment = '', second] = signature.toString('utf8').split('\n')
  const trusted = 'trusted comment: '
  const signed = Buffer.from(first || '', 'base64')
  const again = Buffer.from(second || '', 'base64')
  const valid = signed.length === 74 && again.length === 64 && comment.startsWith(trusted) && keys.some(text => {
    const key = Buffer.from(text, 'base64')
    if (key.length !== 42 || key.toString('latin1', 0, 2) !== 'Ed' || !key.subarray(0, 10).equals(signed.subarray(0, 10))) {
      return false
    }
    const verifier = crypto.createPublicKey({ format: 'jwk', key: { kty: 'OKP', crv: 'Ed25519', x: key.toString('base64url', 10) } })
    const body = signed.subarray(10)
    return crypto.verify(null, sums, verifier, body) &&
      crypto.verify(null, Buffer.concat([body, Buffer.from(comment.slice(trusted.length))]), verifier, again)
  })
  if (!valid) {
    throw new Error("SHA256SUMS.minisig is not the signature of Karve's release manager")
  }
  const [program, version, ...more] = comment.slice(trusted.length).split(' ')
  if (program !== 'karve' || !isVersion(version) || more.length !== 0) {
    throw new Error(`SHA256SUMS.minisig is of "${comment.slice(trusted.length)}", which is no release of Karve`)
  }
  return version
}

/** checked returns the compressed program of a release, given its files by name, if signature, version and checksum are right. */
export function checked(content, version, keys) {
  for (const name of files) {
    if (!content[name]) {
      throw new Error(`there is no ${name}`)
    }
  }
  const found = signedVersion(content.SHA256SUMS, content['SHA256SUMS.minisig'], keys)
  if (found !== version) {
    throw new Error(`it is the release ${found}, want ${version}`)
  }
  const lines = content.SHA256SUMS.toString('utf8').split('\n').map(line => line.split(/\s+/))
  const want = lines.find(fields => fields.length === 2 && fields[1] === asset())
  if (!want) {
    throw new Error(`the release has no ${asset()}`)
  }
  const got = crypto.createHash('sha256').update(content[asset()]).digest('hex')
  if (got !== want[0]) {
    throw new Error(`${asset()} is damaged: its SHA-256 is ${got}, want ${want[0]}`)
  }
  return content[asset()]
}

/** read returns the files of a release in a directory, by name, without those that are not there. */
export function read(directory) {
  const content = {}
  for (const name of files) {
    try {
      content[name] = fs.readFileSync(path.join(directory, name))
    } catch (error) {
      if (error.code !== 'ENOENT') {
        throw error
      }
    }
  }
  return content
}
